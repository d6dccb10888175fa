#![no_main]

libfuzzer_sys::fuzz_target!(|values: (&str, &str)| platform_toolservers::fuzz::address(values.0, values.1));
