#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| platform_models::fuzz::answer(body));
