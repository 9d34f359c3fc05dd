//! Exports of a trace with call stacks, read back.

use super::*;

fn stacks() -> String {
    crate::stacks::tests::training(true)
}

fn folded(by: Weight) -> String {
    folded_of(&stacks(), by)
}

fn folded_of(trace: &str, by: Weight) -> String {
    let trace = Temporary::new(trace);
    let to = Temporary::new("");
    let (files, output, only) = (vec![trace.0.clone()], Some(to.0.clone()), Only::default());
    export(&ExportConfig { files, format: ExportFormat::Folded, output, only, by: Some(by) })
        .expect("a trace");
    std::fs::read_to_string(&to.0).expect("text")
}

#[test]
fn folded_stacks_weigh_time_calls_or_bytes() {
    golden("export_folded", &folded(Weight::Time));
    let sum = |by| -> u64 {
        let text = folded(by);
        text.lines()
            .map(|line| line.rsplit_once(' ').expect("a weight").1.parse::<u64>().expect("a number"))
            .sum()
    };
    assert_eq!((sum(Weight::Count), sum(Weight::Time)), (121, 2952));
    assert_eq!(sum(Weight::Bytes), 20 * (3 * 4096 + 65_536));
    let error = export(&ExportConfig {
        files: Vec::new(),
        format: ExportFormat::Csv,
        output: None,
        only: Only::default(),
        by: Some(Weight::Count),
    });
    assert!(error.expect_err("it has no weight").is::<crate::Usage>());
}

#[test]
fn a_profile_needs_stacks_and_says_so() {
    for format in [ExportFormat::Folded, ExportFormat::Pprof] {
        let (_, said) = exported(format, &[KERNEL]);
        assert!(said.iter().any(|text| text.contains("record with --stacks")), "{said:?}");
        assert_eq!(exported(format, &[&stacks()]).1, Vec::<String>::new());
    }
}

/// A profile as a reader of profile.proto has it.
struct Profile {
    fields: Fields,
    texts: Vec<String>,
    /// By name and unit.
    types: Vec<(String, String)>,
    /// The locations and the values of each sample.
    samples: Vec<(Vec<u64>, Vec<u64>)>,
}

impl Profile {
    fn of(traces: &[&str]) -> Profile {
        let (bytes, _) = exported(ExportFormat::Pprof, traces);
        let mut profile = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut profile)
            .expect("gzip");
        let fields = fields(&profile);
        let of = |wanted: u64| {
            let wanted = fields.iter().filter(move |(field, _)| *field == wanted);
            wanted.map(|(_, value)| value.clone().expect("bytes"))
        };
        let texts: Vec<String> = of(6).map(|text| String::from_utf8(text).expect("UTF-8")).collect();
        let text = |message: &[u8], field| number(message, field).map(|at| texts[at as usize].clone());
        let types = of(1).map(|of| (text(&of, 1).expect("a name"), text(&of, 2).expect("a unit"))).collect();
        let list = |sample: &[u8], field| numbers(&part(sample, field).expect("a list").expect("packed"));
        let samples = of(2).map(|sample| (list(&sample, 1), list(&sample, 2))).collect();
        Profile { types, samples, texts, fields }
    }

    fn sum(&self, at: usize) -> u64 {
        self.samples.iter().map(|(_, values)| values[at]).sum()
    }

    /// The names of the heaviest sample, the innermost first.
    fn heaviest(&self, by: usize) -> Vec<&str> {
        let heaviest = self.samples.iter().max_by_key(|(_, values)| values[by]).expect("samples");
        heaviest.0.iter().map(|location| self.name(*location)).collect()
    }

    fn message(&self, list: u64, id: u64) -> &[u8] {
        let of_list = self.fields.iter().filter(|(field, _)| *field == list);
        let is_it = |message: &&Vec<u8>| part(message, 1) == Some(Err(id));
        of_list.filter_map(|(_, message)| message.as_ref().ok()).find(is_it).expect("defined")
    }

    fn name(&self, location: u64) -> &str {
        let line = part(self.message(4, location), 4).expect("a line").expect("a message");
        let function = number(&line, 1).expect("a function");
        &self.texts[number(self.message(5, function), 2).expect("a name") as usize]
    }
}

fn part(message: &[u8], wanted: u64) -> Option<Result<Vec<u8>, u64>> {
    super::fields(message).into_iter().find(|(field, _)| *field == wanted).map(|(_, value)| value)
}

fn number(message: &[u8], field: u64) -> Option<u64> {
    part(message, field)?.err()
}

fn numbers(packed: &[u8]) -> Vec<u64> {
    let mut all = vec![0u64];
    let mut shift = 0;
    for byte in packed {
        *all.last_mut().expect("one") |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            (shift, _) = (0, all.push(0));
        }
    }
    all.pop();
    all
}

fn types(profile: &Profile) -> Vec<(&str, &str)> {
    profile.types.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect()
}

const TYPES: [(&str, &str); 4] =
    [("calls", "count"), ("time", "nanoseconds"), ("bytes", "bytes"), ("gpu", "nanoseconds")];

#[test]
fn a_profile_has_every_call_once() {
    let two = [stacks(), stacks()];
    let profile = Profile::of(&[&two[0], &two[1]]);
    assert_eq!((profile.texts[0].as_str(), types(&profile)), ("", TYPES[..3].to_vec()));
    assert_eq!(
        (0..3).map(|at| profile.sum(at)).collect::<Vec<_>>(),
        [242, 2 * 2_952_000, 40 * (3 * 4096 + 65_536)]
    );
    assert_eq!(profile.heaviest(1), ["cudaDeviceSynchronize", "wait", "<module>"]);
}

/// All samples have a value for the GPU as soon as any of the traces has GPU work.
#[test]
fn a_profile_has_the_time_on_the_gpu() {
    let lines = GPU.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let works = lines.filter(|line| line["type"] == "gpu" && line["begin"].is_number());
    let ns = works.map(|work| (work["duration_us"].as_f64().expect("a time") * 1e3).round() as u64);
    let by_line: u64 = ns.sum();
    assert!(by_line > 0);
    let own = stacks();
    for traces in [&[GPU][..], &[&own, GPU], &[GPU, &own]] {
        let profile = Profile::of(traces);
        assert_eq!(types(&profile), TYPES);
        assert!(profile.samples.iter().all(|(_, values)| values.len() == 4));
        assert_eq!(profile.sum(3), by_line);
        assert_eq!(profile.heaviest(3), ["cudaLaunchKernel", "step", "<module>"]);
    }
    // The same as the folded stacks, which round each line up to a microsecond.
    let folded = folded_of(GPU, Weight::Gpu);
    let weights = folded.lines().map(|line| line.rsplit_once(' ').expect("a weight").1);
    let us: u64 = weights.map(|weight| weight.parse::<u64>().expect("a number")).sum();
    assert!(us * 1000 >= by_line && us * 1000 < by_line + 1000 * folded.lines().count() as u64);
    assert!(folded.lines().any(|line| line.contains("step (train.py:88);cudaLaunchKernel ")), "{folded}");
}

#[test]
fn chrome_has_a_tree_of_frames() {
    let (json, _) = exported(ExportFormat::Chrome, &[&stacks()]);
    let document: Value = serde_json::from_slice(&json).expect("JSON");
    let frames = &document["stackFrames"];
    let begins = &events(&json)["B"];
    assert_eq!(begins.iter().filter(|event| event.get("sf").is_some()).count(), 121);
    let wait = begins.iter().find(|event| event["name"] == "cudaDeviceSynchronize").expect("a wait");
    let mut names = Vec::new();
    let mut next = Some(wait["sf"].to_string());
    while let Some(id) = next {
        names.push(frames[&id]["name"].as_str().expect("a frame").to_owned());
        next = frames[&id]["parent"].as_str().map(str::to_owned);
    }
    assert_eq!(names, ["train.py:50 wait", "train.py:12 <module>"]);
    let (json, _) = exported(ExportFormat::Chrome, &[KERNEL]);
    assert!(!String::from_utf8(json).expect("text").contains("stackFrames"));
}

#[test]
fn perfetto_has_interned_callstacks() {
    let (bytes, _) = exported(ExportFormat::Perfetto, &[&stacks()]);
    // By kind of entry and number: its fields.
    let mut interned: HashMap<(u64, u64), Fields> = HashMap::new();
    let mut used = Vec::new();
    for (_, packet) in fields(&bytes) {
        for (field, content) in fields(&packet.expect("a packet")) {
            match (field, content) {
                (12, Ok(entries)) => {
                    for (kind, entry) in fields(&entries) {
                        let entry = fields(&entry.expect("an entry"));
                        let Some((1, Err(number))) = entry.first().cloned() else { panic!("no number") };
                        assert!(interned.insert((kind, number), entry).is_none(), "defined twice");
                    }
                }
                (11, Ok(event)) => {
                    used.extend(fields(&event).into_iter().filter(|(field, _)| *field == 56).map(|(_, n)| n));
                }
                _ => {}
            }
        }
    }
    assert_eq!(used.len(), 121);
    let text = |kind: u64, frame: &Fields, field: u64| {
        let number = frame.iter().find(|(known, _)| *known == field)?.1.clone().err()?;
        let (_, Ok(text)) = interned[&(kind, number)][1].clone() else { panic!("a text") };
        String::from_utf8(text).ok()
    };
    let wait = used.iter().filter_map(|number| number.clone().err()).map(|number| {
        let frames =
            interned[&(7, number)].iter().skip(1).map(|(_, frame)| frame.clone().expect_err("a number"));
        frames.map(|frame| interned[&(6, frame)].clone()).collect::<Vec<_>>()
    });
    let names: Vec<Vec<String>> =
        wait.map(|frames| frames.iter().filter_map(|frame| text(5, frame, 2)).collect()).collect();
    // The outermost frame comes first.
    assert!(names.contains(&vec!["<module>".to_owned(), "wait".to_owned()]), "{names:?}");
    let frame =
        interned.iter().find(|((kind, _), frame)| *kind == 6 && text(5, frame, 2).as_deref() == Some("wait"));
    let (_, frame) = frame.expect("a frame");
    assert_eq!(text(18, frame, 5).as_deref(), Some("/home/ada/train.py"));
    assert!(frame.contains(&(6, Err(50))));
}
