//! The labels of a process. In: its name and cgroup, and the folders in which the kubelet keeps the logs of pods. Out:
//! pairs of name and value.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::process::cgroup::{self, Owner};
use crate::ui::is_unsafe;
use gpurec_analysis::usage::Part;
use gpurec_trace::bounds::short;

/// The label `pid` of the sums of all processes that ended, and of those beyond the limit.
pub const ENDED: &str = "ended";
const OTHERS: &str = "others";

/// Where the kubelet has a folder NAMESPACE_POD_UID for each pod of this machine.
const PODS: &str = "/var/log/pods";

/// The shortest time after which the folder is read again for a pod that is not known.
const AGAIN: Duration = Duration::from_secs(10);

/// Limits on the pods of a machine, and on the length of a label.
const MOST_PODS: usize = 4096;
const LONGEST: usize = 256;

pub type Labels = Vec<(&'static str, String)>;

pub fn of_ended() -> Labels {
    vec![("pid", ENDED.to_owned())]
}

pub fn of_others() -> Labels {
    vec![("pid", OTHERS.to_owned())]
}

pub fn of_process(part: &Part, pods: &Pods) -> Labels {
    let owner = part.name.cgroup.as_deref().map(Owner::of).unwrap_or_default();
    let (namespace, pod) = match owner.pod {
        Some(uid) => match pods.name(&uid) {
            Some((namespace, pod)) => (Some(namespace), Some(pod)),
            None => (None, Some(uid)),
        },
        None => (None, None),
    };
    let all = [
        ("pid", Some(part.pid.to_string())),
        ("comm", Some(clean(&part.name.comm))),
        ("rank", part.name.rank.map(|rank| rank.to_string())),
        ("container", owner.container),
        ("pod", pod),
        ("namespace", namespace),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Removes what could control a terminal from a value that a program chose: users print metrics on terminals.
pub fn clean(text: &str) -> String {
    short(text, LONGEST).chars().map(|c| if is_unsafe(c) { '?' } else { c }).collect()
}

/// Namespaces and names of pods by uid: a cgroup has only the uid.
#[derive(Default)]
pub struct Pods(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_uid: HashMap<String, (String, String)>,
    read: Option<Instant>,
}

impl Pods {
    fn name(&self, uid: &str) -> Option<(String, String)> {
        let mut known = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let is_due = known.read.is_none_or(|read| read.elapsed() >= AGAIN);
        if is_due && !known.by_uid.contains_key(uid) {
            let entries = std::fs::read_dir(PODS).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            known.by_uid = names.filter_map(|name| parse(&name)).take(MOST_PODS).collect();
            known.read = Some(Instant::now());
        }
        known.by_uid.get(uid).cloned()
    }
}

/// NAMESPACE_POD_UID: neither name has an underscore.
fn parse(folder: &str) -> Option<(String, (String, String))> {
    let parts: Vec<&str> = folder.split('_').collect();
    let [namespace, pod, uid] = parts.as_slice() else { return None };
    let is_whole = !namespace.is_empty() && !pod.is_empty() && cgroup::is_uid(uid);
    is_whole.then(|| ((*uid).to_owned(), (clean(namespace), clean(pod))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpurec_analysis::usage::Name;

    const UID: &str = "8d1f22b4-5c0e-4a55-9d4e-0123456789ab";

    #[test]
    fn the_folders_of_pods() {
        let parsed = parse(&format!("ml_trainer-0_{UID}"));
        assert_eq!(parsed, Some((UID.into(), ("ml".into(), "trainer-0".into()))));
        let of_node = parse("kube-system_etcd-a_0123456789abcdef0123456789abcdef");
        assert_eq!(of_node.map(|(_, (namespace, _))| namespace).as_deref(), Some("kube-system"));
        for folder in ["", "ml", "ml_trainer", "ml_trainer_x", &format!("_a_{UID}"), &format!("a_b_c_{UID}")]
        {
            assert_eq!(parse(folder), None, "{folder}");
        }
    }

    #[test]
    fn a_process_has_the_labels_that_are_known() {
        let id = "3f2a9c41d7be0856".repeat(4);
        let of = |name: Name| of_process(&Part { pid: 7, name, ..Part::default() }, &Pods::default());
        assert_eq!(of(Name::default()), [("pid", "7".to_owned()), ("comm", String::new())]);
        let cgroup = Some(format!("/kubepods/burstable/pod{UID}/{id}"));
        let labels = of(Name { comm: "a\x1b[2J\"b".into(), rank: Some(3), cgroup, user: None });
        let expected = [("pid", "7"), ("comm", "a?[2J\"b"), ("rank", "3"), ("container", &id), ("pod", UID)];
        assert_eq!(labels, expected.map(|(name, value)| (name, value.to_owned())));
    }
}
