DROP TABLE skill_installs;
DROP TABLE skill_reads;
