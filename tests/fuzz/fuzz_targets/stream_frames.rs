#![no_main]

libfuzzer_sys::fuzz_target!(|shown: (&str, u8)| platform_realtime::fuzz::frames(shown.0, shown.1.into()));
