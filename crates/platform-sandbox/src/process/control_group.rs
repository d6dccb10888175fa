//! Bounds on what a machine takes of memory, processes and CPU time, where the host lets us set them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tracing::debug;

/// A group of processes that are bounded together: a directory of each hierarchy.
#[derive(Debug)]
pub(super) struct ControlGroup(Vec<PathBuf>);

impl ControlGroup {
    /// `None` where this process may make none.
    pub fn create(name: &str, memory: u64, cpus: u32, processes: u64) -> Option<Self> {
        let mut group = Self(Vec::new());
        let bounds = |controller: &str| match controller {
            "" => vec![
                ("memory.max", memory.to_string()),
                ("memory.swap.max", "0".to_owned()),
                ("pids.max", processes.to_string()),
                ("cpu.max", format!("{} 100000", cpus * 100_000)),
            ],
            "memory" => vec![("memory.limit_in_bytes", memory.to_string())],
            "pids" => vec![("pids.max", processes.to_string())],
            _ => vec![("cpu.cfs_quota_us", (cpus * 100_000).to_string())],
        };
        let made =
            places(name).and_then(|places| places.into_iter().try_for_each(|(of, dir)| group.make(&dir, &bounds(of))));
        match made {
            Ok(()) => Some(group),
            Err(error) => {
                debug!(%error, "There are no control groups for machines.");
                None
            }
        }
    }

    /// Removes the group of a machine whose process is gone.
    pub fn remove(name: &str) {
        let places = places(name).unwrap_or_default();
        drop(Self(places.into_iter().map(|(_, dir)| dir).filter(|dir| dir.exists()).collect()));
    }

    fn make(&mut self, dir: &Path, bounds: &[(&'static str, String)]) -> io::Result<()> {
        fs::create_dir(dir)?;
        self.0.push(dir.to_owned());
        bounds.iter().try_for_each(|(file, value)| fs::write(dir.join(file), value))
    }

    /// Puts a process into it, with all that it will start.
    pub fn add(&self, process: u32) -> io::Result<()> {
        self.0.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), process.to_string()))
    }
}

/// Where the group of a machine is in each hierarchy, by its controller; in the one of all its name is empty.
fn places(name: &str) -> io::Result<Vec<(&'static str, PathBuf)>> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let root = PathBuf::from("/sys/fs/cgroup");
    let is_one = root.join("cgroup.controllers").exists();
    let controllers: &[&'static str] = if is_one { &[""] } else { &["memory", "pids", "cpu"] };
    let place = |controller: &'static str| {
        let path = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|each| each == controller).then(|| path.trim_start_matches('/'))
        });
        let path = path.ok_or_else(|| io::Error::other(format!("no hierarchy of {controller}")))?;
        Ok((controller, root.join(controller).join(path).join(format!("platform-{name}"))))
    };
    controllers.iter().map(|controller| place(controller)).collect()
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
