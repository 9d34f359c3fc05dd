//! The BPF objects: opened, configured, loaded. In: the options and the rung to try.
//! Out: loaded programs that share one set of maps. Nothing is attached here.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::{
    Map, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, ProgramAttachType,
};

use super::wire;

const PROCESS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/process.bpf.o"));
const CUDA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cuda.bpf.o"));
const DRIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/driver.bpf.o"));

/// The maps that every object shares with the first.
const SHARED: [&str; 7] = ["rings", "control", "targets", "threads", "lost", "lost_total", "state"];

/// Records that can be in the making on one CPU: one runs, others sleep over a page.
const SCRATCHES_A_CPU: usize = 16;

/// How CUDA functions are hooked, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// One session program, entry and return in one link for a whole library (6.13+).
    Session,
    /// Two links for a library: entries and returns (6.6+).
    Multi,
    /// Two links for a function.
    Single,
}

impl Rung {
    pub const ALL: [Rung; 3] = [Rung::Session, Rung::Multi, Rung::Single];

    pub fn name(self) -> &'static str {
        match self {
            Rung::Session => "uprobe.session",
            Rung::Multi => "uprobe.multi",
            Rung::Single => "uprobe",
        }
    }

    pub fn from_name(name: &str) -> Option<Rung> {
        Rung::ALL.into_iter().find(|rung| rung.name() == name)
    }
}

pub struct Settings {
    pub everyone: bool,
    pub follow: bool,
    /// Bytes of each CPU's ring: a power of two, at least a page.
    pub ring: usize,
}

/// The process object with the shared maps, and the rings.
pub struct Base {
    pub object: Object,
    pub rings: Vec<MapHandle>,
    config: wire::Config,
}

impl Base {
    pub fn load(settings: &Settings) -> Result<Base> {
        let cpus = libbpf_rs::num_possible_cpus()?;
        if cpus > wire::MAX_CPUS as usize {
            bail!("this machine may have {cpus} CPUs, gpurec knows {} at most", wire::MAX_CPUS);
        }
        let config = wire::Config {
            everyone: settings.everyone.into(),
            follow: settings.follow.into(),
            // An eighth stays free for what cannot be declined any more (see emit.h).
            call_limit: (settings.ring - settings.ring / 8) as u64,
            may_sleep: 0,
            probe: 0,
            scratches: (cpus * SCRATCHES_A_CPU) as u32,
            pad: 0,
        };
        let mut open = open(PROCESS, "process")?;
        configure(&mut open, &config)?;
        let object = open.load().context("the kernel refused gpurec's process programs")?;
        let rings = make_rings(&object, cpus, settings.ring)?;
        Ok(Base { object, rings, config })
    }

    pub fn map(&self, name: &str) -> Result<Map<'_>> {
        find_map(&self.object, name)
    }

    /// The CUDA programs of one rung. `may_sleep`: so that they can fetch pages that nobody
    /// has touched yet; kernels before 6.0 refuse that.
    pub fn load_cuda(&self, rung: Rung, may_sleep: bool) -> Result<Object> {
        let wanted = cuda_programs(rung);
        let mut open = open(CUDA, "cuda")?;
        configure(&mut open, &wire::Config { may_sleep: may_sleep.into(), ..self.config })?;
        self.share(&mut open, None)?;
        for mut map in open.maps_mut().filter(|map| map.name() == "scratches") {
            map.set_max_entries(self.config.scratches)?;
        }
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(wanted.contains(&name.as_str()));
            if !may_sleep {
                program.set_flags(0);
            }
            if rung == Rung::Multi {
                program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
            }
        }
        open.load().with_context(|| format!("the kernel refused the {} programs", rung.name()))
    }
}

impl Base {
    /// Some of the driver programs; with none, only their maps. They take over the maps of
    /// an object loaded before, so that there is one set of them.
    pub fn load_driver(
        &self,
        programs: &[&str],
        before: Option<&Object>,
        probe: u32,
        function: Option<&str>,
    ) -> Result<Object> {
        let mut open = open(DRIVER, "driver")?;
        configure(&mut open, &wire::Config { probe, ..self.config })?;
        self.share(&mut open, before)?;
        for mut program in open.progs_mut() {
            let wanted = programs.contains(&program.name().to_string_lossy().as_ref());
            program.set_autoload(wanted);
            if let (true, Some(function)) = (wanted, function) {
                program.set_attach_target(0, Some(function.to_owned()))?;
            }
        }
        open.load().with_context(|| format!("the kernel refused {}", programs.join(", ")))
    }

    fn share(&self, open: &mut OpenObject, before: Option<&Object>) -> Result<()> {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SHARED.contains(&name.as_str()) {
                map.reuse_fd(self.map(&name)?.as_fd())?;
            } else if let (Some(before), false) = (before, name.contains(".rodata")) {
                map.reuse_fd(find_map(before, &name)?.as_fd())?;
            }
        }
        Ok(())
    }
}

/// The programs of a rung. Kernels that hand the context to the session helpers need the
/// other form; which one this is shows in the kernel's BTF.
fn cuda_programs(rung: Rung) -> &'static [&'static str] {
    match rung {
        Rung::Session if session_takes_context("bpf_session_cookie") => &["cuda_session_ctx"],
        Rung::Session => &["cuda_session"],
        Rung::Multi | Rung::Single => &["cuda_entry", "cuda_return"],
    }
}

pub fn session_takes_context(function: &str) -> bool {
    use libbpf_rs::ReferencesType as _;
    use libbpf_rs::btf::{Btf, types};
    let Ok(btf) = Btf::from_vmlinux() else { return false };
    btf.type_by_name::<types::Func>(function)
        .and_then(|func| types::FuncProto::try_from(func.referenced_type()).ok())
        .is_some_and(|proto| proto.iter().len() > 0)
}

fn open(bytes: &[u8], name: &str) -> Result<OpenObject> {
    let mut builder = ObjectBuilder::default();
    // A rung that the kernel refuses is no news, and what libbpf says of it is for nobody.
    libbpf_rs::set_print(None);
    builder.name(name).map_err(|e| anyhow!("{e:#}"))?;
    builder.open_memory(bytes).context("gpurec's own BPF object cannot be read")
}

fn configure(open: &mut OpenObject, config: &wire::Config) -> Result<()> {
    let mut rodata = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .context("gpurec's BPF object has no .rodata")?;
    let mut value = rodata.initial_value().context("gpurec's .rodata is empty")?.to_vec();
    let config = wire::bytes(config);
    value.get_mut(..config.len()).context("gpurec's .rodata is too small")?.copy_from_slice(config);
    rodata.set_initial_value(&value)?;
    Ok(())
}

pub fn find_map<'a>(object: &'a Object, name: &str) -> Result<Map<'a>> {
    object.maps().find(|map| map.name() == name).with_context(|| format!("no BPF map {name}"))
}

fn make_rings(object: &Object, cpus: usize, size: usize) -> Result<Vec<MapHandle>> {
    let array = find_map(object, "rings")?;
    (0..cpus as u32)
        .map(|cpu| {
            let ring = make_ring(size)?;
            let fd = ring.as_fd().as_raw_fd().to_ne_bytes();
            array.update(&cpu.to_ne_bytes(), &fd, MapFlags::ANY)?;
            Ok(ring)
        })
        .collect()
}

fn make_ring(size: usize) -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("gpurec_ring"), 0, 0, size as u32, &options).with_context(|| {
        format!("cannot make a ring of {} KiB for each CPU; try a smaller --ring", size >> 10)
    })
}
