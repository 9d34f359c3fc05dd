//! Xids in a recording without --kernel: `gpurec_xid_total`, and a dump of `--dump-on xid`.
//! In: what guest/xid.sh left. Out: asserts.

use serde_json::Value;

use crate::machine::Visit;

pub fn is_served_and_dumped(visit: &Visit) {
    let said = visit.text("xid.txt");
    let metrics = visit.text("xid.metrics");
    let counted = metrics.lines().find(|line| line.starts_with("gpurec_xid_total{"));
    let counted = counted.unwrap_or_else(|| panic!("{visit}: {said}\n{metrics}"));
    assert!(counted.contains("xid=\"79\"") && counted.ends_with(" 1"), "{visit}: {counted}");
    let dump = visit.text("xid-1-xid.jsonl");
    let lines: Vec<Value> = dump.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = lines.last().unwrap_or_else(|| panic!("{visit}: {said}"));
    assert_eq!((&end["type"], &end["dump"]["event"]), (&"end".into(), &"xid".into()), "{visit}: {end}");
    let xids: Vec<&Value> = lines.iter().filter(|line| line["type"] == "xid").collect();
    assert_eq!((xids.len(), &xids[0]["xid"]), (1, &79.into()), "{visit}: {xids:?}");
    assert!(xids[0]["message"].as_str().is_some_and(|text| text.contains("fallen off")), "{visit}: {xids:?}");
    // The recording had no --kernel, so its summary has no figures of the kernel side.
    assert!(said.contains("(Xid): 1\n") && !said.contains("KERNEL SPACE"), "{visit}: {said}");
    assert!(end["summary"].get("kernel_space").is_none(), "{visit}: {end}");
}
