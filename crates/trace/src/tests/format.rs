//! Compares docs/trace-format.md with the lines that are written.
//!
//! In: one line of each kind, and many random lines. Out: keys that the page lacks, or that no line has.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const PAGE: &str = include_str!("../../../../docs/trace-format.md");

type Keys = BTreeMap<String, BTreeSet<String>>;

/// The words in backticks.
fn names(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The documented keys by type: the first column of each table under a heading that names the type. Keys of every line
/// are under "".
fn documented() -> Keys {
    let mut keys = Keys::new();
    let mut types: Vec<String> = Vec::new();
    for line in PAGE.lines() {
        match line.split_once(' ') {
            Some(("##", "Every line")) => types = vec![String::new()],
            Some(("##", _)) => types.clear(),
            Some(("###", heading)) => types = names(heading).collect(),
            Some(("|", cells)) => {
                for kind in &types {
                    keys.entry(kind.clone()).or_default().extend(names(cells.split('|').next().unwrap()));
                }
            }
            _ => {}
        }
    }
    keys
}

/// Lines with the keys that `cold_lines` lacks.
fn rest() -> Vec<Body<'static>> {
    let found = Found {
        pid: 1,
        comm: "python".into(),
        user: Some("ada".into()),
        cgroup: Some("/a".into()),
        container: Some("b".into()),
        rank: Some(1),
        local_rank: Some(0),
        world_size: Some(2),
        job: Some("c".into()),
        ..Found::default()
    };
    let header = Header {
        pids: Some(vec![1]),
        all: true,
        ns_per_call_by_site: BTreeMap::from([("uprobe".to_owned(), BTreeMap::new())]),
        ns_per_counted: Some(200),
        ..header()
    };
    let xid = Xid { pid: 1, tid: 1, xid: 31, message: "MMU Fault".into(), device: "0000:01:00".into() };
    vec![Body::Process(Process::Found(found)), Body::Header(Box::new(header)), Body::Xid(xid)]
}

fn written_keys() -> Keys {
    let mut random = Random(20);
    let mut lines = cold_lines();
    lines.extend(rest().into_iter().map(|body| Line { event_id: 1, ts_ns: 1, body }));
    lines.extend((0..5_000).map(|_| random.line()));
    let mut keys = Keys::new();
    for line in String::from_utf8(written(&lines)).unwrap().lines() {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let kind = object["type"].as_str().unwrap().to_owned();
        keys.entry(kind).or_default().extend(object.keys().cloned());
    }
    keys
}

#[test]
fn the_page_has_every_key_of_every_line_and_no_other() {
    let documented = documented();
    let written = written_keys();
    let every = &documented[""];
    assert_eq!(every.iter().map(String::as_str).collect::<Vec<_>>(), ["event_id", "name", "ts", "type"]);
    assert_eq!(
        documented.keys().filter(|kind| !kind.is_empty()).collect::<Vec<_>>(),
        written.keys().collect::<Vec<_>>(),
        "types"
    );
    for (kind, keys) in &written {
        let keys: BTreeSet<&String> = keys.difference(every).collect();
        assert_eq!(documented[kind].iter().collect::<BTreeSet<_>>(), keys, "the keys of {kind}");
    }
}
