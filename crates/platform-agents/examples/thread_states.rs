//! Prints the states of a thread as a picture.

fn main() {
    print!("{}", platform_agents::picture());
}
