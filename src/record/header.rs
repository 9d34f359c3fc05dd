//! The trace's first line. In: the configuration, the machine, the hooks. Out: a Header.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use super::{Config, Target};
use crate::clock::Reading;
use crate::host;
use crate::probe::Probes;
use crate::process::identity::Identity;
use gpurec_trace::{EMULATED, EMULATED_COLD, SINGLE_STEPPED, SINGLE_STEPPED_COLD};
use gpurec_trace::{Header, Layer, RefusedHook, SCHEMA, time};

/// `start`: when the recording began, time 0 of the trace.
pub fn header(config: &Config, probes: &Probes, user: &Identity, start: Reading) -> Header {
    let costs = &probes.costs;
    let by_site = [
        (EMULATED, costs.emulated),
        (SINGLE_STEPPED, costs.stepped),
        (EMULATED_COLD, costs.emulated_cold),
        (SINGLE_STEPPED_COLD, costs.stepped_cold),
    ];
    let by_site = BTreeMap::from(by_site.map(|(kind, ns)| (kind.to_owned(), ns)));
    let mut header = Header {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start: time::rfc3339(UNIX_EPOCH + Duration::from_nanos(start.realtime)),
        host: host_name(),
        kernel: proc_line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        driver: host::driver_version(),
        user: user.user.clone(),
        options: config.options.clone(),
        hooks: BTreeMap::from([("userspace".to_owned(), layer(probes))]),
        ns_per_call: Some(costs.emulated),
        ns_per_call_by_site: BTreeMap::from([(probes.backend.name().to_owned(), by_site)]),
        clock: Some(host::clock::describe(start)),
        ..Header::default()
    };
    if let Some(driver) = probes.driver().filter(|driver| !driver.sees_xids_only()) {
        header.hooks.insert("kernel".to_owned(), driver.layer());
    }
    match &config.target {
        Target::Command(words) => {
            header.command = Some(words.iter().map(|w| w.to_string_lossy().into_owned()).collect());
        }
        Target::Pids(pids) => header.pids = Some(pids.clone()),
        Target::All => header.all = true,
    }
    header
}

/// The count covers the functions that are hooked so far; `library` lines report later ones.
fn layer(probes: &Probes) -> Layer {
    let refused = probes
        .refused
        .iter()
        .map(|(backend, why)| RefusedHook::new(backend.name(), why.clone().into()))
        .collect();
    let backend = probes.backend.name().to_owned();
    Layer { backend, attached: probes.attached() as u64, refused, ..Layer::default() }
}

pub fn host_name() -> String {
    proc_line("/proc/sys/kernel/hostname").unwrap_or_default()
}

fn proc_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
