//! Bounds on what a machine takes of memory, processes and CPU time, where the host lets us set them.

use std::{fs, io, path::PathBuf, thread, time::Duration};

use tracing::debug;

/// A group of processes that are bounded together: a directory of each hierarchy.
#[derive(Debug)]
pub(super) struct ControlGroup(Vec<PathBuf>);

/// What is written where, to bound a group.
type Bounds = [(&'static str, String)];

impl ControlGroup {
    /// `None` where this process may make none.
    pub fn create(name: &str, memory: u64, cpus: u32, processes: u64) -> Option<Self> {
        let mut group = Self(Vec::new());
        match group.bound(&format!("platform-{name}"), memory, cpus, processes) {
            Ok(()) => Some(group),
            Err(error) => {
                debug!(%error, "There are no control groups for machines.");
                None
            }
        }
    }

    fn bound(&mut self, name: &str, memory: u64, cpus: u32, processes: u64) -> io::Result<()> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let of = |controller: &str| {
            own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers.split(',').any(|each| each == controller).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        if PathBuf::from("/sys/fs/cgroup/cgroup.controllers").exists() {
            let bounds = [
                ("memory.max", memory.to_string()),
                ("memory.swap.max", "0".to_owned()),
                ("pids.max", processes.to_string()),
                ("cpu.max", format!("{} 100000", cpus * 100_000)),
            ];
            let path = of("").unwrap_or_default();
            return self.make(PathBuf::from("/sys/fs/cgroup").join(path).join(name), &bounds);
        }
        let hierarchies: [(&str, Vec<(&'static str, String)>); 3] = [
            ("memory", vec![("memory.limit_in_bytes", memory.to_string())]),
            ("pids", vec![("pids.max", processes.to_string())]),
            ("cpu", vec![("cpu.cfs_quota_us", (cpus * 100_000).to_string())]),
        ];
        for (controller, bounds) in hierarchies {
            let path = of(controller).ok_or_else(|| io::Error::other(format!("no hierarchy of {controller}")))?;
            self.make(PathBuf::from("/sys/fs/cgroup").join(controller).join(path).join(name), &bounds)?;
        }
        Ok(())
    }

    fn make(&mut self, dir: PathBuf, bounds: &Bounds) -> io::Result<()> {
        fs::create_dir(&dir)?;
        self.0.push(dir.clone());
        bounds.iter().try_for_each(|(file, value)| fs::write(dir.join(file), value))
    }

    /// Puts a process into it, with all that it will start.
    pub fn add(&self, process: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), process.to_string()))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let dirs = std::mem::take(&mut self.0);
        // Processes that were killed leave it a moment later.
        thread::spawn(move || {
            for dir in dirs {
                let gone = (0..100).any(|_| {
                    fs::remove_dir(&dir).is_ok() || {
                        thread::sleep(Duration::from_millis(20));
                        false
                    }
                });
                if !gone {
                    debug!(dir = %dir.display(), "A control group could not be removed.");
                }
            }
        });
    }
}
