//! The container and the pod of a process, from the name of its cgroup. In: the text of /proc/PID/cgroup. Out: ids.
//! Pure. Not here: names of pods, which no cgroup contains.

/// What the name of a cgroup shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its id, of 64 hex digits.
    pub container: Option<String>,
    /// The uid that Kubernetes gave the pod.
    pub pod: Option<String>,
}

/// The path in the unified hierarchy; without one, the longest path of the others.
pub fn path(text: &str) -> Option<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text.lines().find(|line| line.starts_with("0::")).and_then(path);
    let unified = unified.filter(|path| path != "/");
    unified.or_else(|| text.lines().filter_map(path).max_by_key(String::len))
}

impl Owner {
    pub fn of(cgroup: &str) -> Owner {
        Owner { container: container(cgroup), pod: pod(cgroup) }
    }
}

/// Docker, containerd, CRI-O and Podman put the container's id, 64 hex digits, into the cgroup's name. The innermost
/// counts: a container may run others.
fn container(cgroup: &str) -> Option<String> {
    let mut words = cgroup.split(|c: char| !c.is_ascii_alphanumeric());
    words.rfind(|word| word.len() == 64 && word.bytes().all(is_hex)).map(str::to_owned)
}

/// The kubelet names the cgroup of a pod `podUID`, with systemd `kubepods-QOS-podUID.slice`, where a dash of the uid is
/// an underscore.
fn pod(cgroup: &str) -> Option<String> {
    let name = |part: &str| {
        let part = part.split(['.', ':']).next()?;
        let at =
            part.rfind("pod").filter(|at| *at == 0 || part.get(..*at).is_some_and(|p| p.ends_with('-')))?;
        let uid = part.get(at + 3..)?.replace('_', "-");
        is_uid(&uid).then_some(uid)
    };
    cgroup.rsplit('/').find_map(name)
}

/// A UUID; a pod that the node itself defines has 32 hex digits.
pub fn is_uid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let has_shape = matches!(lengths.as_slice(), [32] | [8, 4, 4, 4, 12]);
    has_shape && groups.concat().bytes().all(is_hex)
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ID` stands for a container's id, `UID` and `U_ID` for a pod's.
    const ID: &str = "3f2a9c41d7be08563f2a9c41d7be08563f2a9c41d7be08563f2a9c41d7be0856";
    const OTHER: &str = "0000000000000000111111111111111122222222222222223333333333333333";
    const UID: &str = "8d1f22b4-5c0e-4a55-9d4e-0123456789ab";

    /// The name, and whether it shows a container and a pod.
    const CGROUPS: &[(&str, bool, bool)] = &[
        // Docker: cgroupfs, systemd, rootless.
        ("/docker/ID", true, false),
        ("/system.slice/docker-ID.scope", true, false),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope", true, false),
        // Docker in Docker: the inner one.
        ("/docker/OTHER/docker/ID", true, false),
        // containerd by itself, and with names of its own.
        ("/system.slice/nerdctl-ID.scope", true, false),
        ("/default/ID", true, false),
        ("/default/nginx", false, false),
        // Podman.
        ("/machine.slice/libpod-ID.scope/container", true, false),
        ("/machine.slice/machine-libpod_pod_OTHER.slice/libpod-ID.scope", true, false),
        // Kubernetes with systemd: containerd, CRI-O; each class of service.
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope",
            true,
            true,
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-ID.scope",
            true,
            true,
        ),
        ("/kubepods.slice/kubepods-podU_ID.slice/crio-ID.scope/container", true, true),
        ("/kubepods.slice/kubepods-podU_ID.slice/docker-ID.scope", true, true),
        // The container's manager uses cgroupfs and the kubelet systemd.
        ("/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:ID", true, true),
        // Kubernetes with cgroupfs.
        ("/kubepods/burstable/podUID/ID", true, true),
        ("/kubepods/podUID/ID", true, true),
        ("/kubepods/besteffort/pod0123456789abcdef0123456789abcdef/ID", true, true),
        // kind: a node that is a container.
        (
            "/docker/OTHER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_ID.slice/cri-containerd-ID.scope",
            true,
            true,
        ),
        // As seen from another cgroup namespace.
        ("/../../kubepods-podU_ID.slice/cri-containerd-ID.scope", true, true),
        // The pod's own process.
        ("/kubepods/burstable/podUID", false, true),
        // ECS.
        ("/ecs/0123456789abcdef0123456789abcdef/ID", true, false),
        // No container.
        ("/", false, false),
        ("/user.slice/user-1000.slice/session-3.scope", false, false),
        ("/system.slice/slurmstepd.scope/job_17/step_0/user/task_0", false, false),
        ("/system.slice/podman.service", false, false),
        ("/system.slice/tripod-UID.service", false, false),
        ("/system.slice/gpurec.service", false, false),
    ];

    #[test]
    fn names_of_cgroups() {
        for (name, has_container, has_pod) in CGROUPS {
            let own_uid = if name.contains("pod01234") { "0123456789abcdef0123456789abcdef" } else { UID };
            let name = name.replace("U_ID", &UID.replace('-', "_")).replace("UID", UID);
            let name = name.replace("OTHER", OTHER).replace("ID", ID);
            let owner = Owner::of(&name);
            assert_eq!(owner.container.as_deref(), has_container.then_some(ID), "{name}");
            assert_eq!(owner.pod.as_deref(), has_pod.then_some(own_uid), "{name}");
        }
    }

    #[test]
    fn the_unified_hierarchy_comes_first() {
        for (text, expected) in [
            ("0::/system.slice/a.service\n", Some("/system.slice/a.service")),
            ("12:memory:/docker/x\n1:name=systemd:/docker/xyz\n0::/init\n", Some("/init")),
            ("12:memory:/docker/x\n1:name=systemd:/docker/xyz\n0::/\n", Some("/docker/xyz")),
            ("4:cpu,cpuacct:/a:b\n", Some("/a:b")),
            ("0::/\n", Some("/")),
            ("", None),
        ] {
            assert_eq!(path(text).as_deref(), expected, "{text}");
        }
    }
}
