//! The name that -o gives a trace. In: the name as given, and the values of its letters. Out: the name of the file, or
//! a descriptor that the caller passed; or a sentence that says what is wrong with the name and what to do.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpurec_trace::time;

/// The values of the letters that differ between recordings.
pub struct Letters<'a> {
    pub host: &'a str,
    pub start: SystemTime,
    /// Called only if the name uses it, because it reads other processes.
    pub rank: &'a dyn Fn() -> Option<String>,
}

/// Replaces `%h`, `%p`, `%t`, `%r` and `%%` by their values.
pub fn expand(given: &Path, letters: &Letters) -> Result<PathBuf, String> {
    let mut name = Vec::new();
    let mut rest = given.as_os_str().as_bytes().iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => name.extend(letter(given, rest.next(), letters)?.bytes()),
            byte => name.push(byte),
        }
    }
    let name = PathBuf::from(OsString::from_vec(name));
    gpurec_trace::refused_packing(&name).map_or(Ok(name), Err)
}

fn letter(given: &Path, letter: Option<u8>, letters: &Letters) -> Result<String, String> {
    let given = given.display();
    match letter {
        // The value must not add folders to the path, whatever the host's name is.
        Some(b'h') => Ok(letters.host.replace('/', "_")),
        Some(b'p') => Ok(std::process::id().to_string()),
        Some(b't') => Ok(time::stamp(letters.start)),
        Some(b'r') => (letters.rank)().ok_or_else(|| {
            format!(
                "-o {given}: %r is the rank of a distributed job, and none is set here (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK): set RANK, or use %p"
            )
        }),
        Some(b'%') => Ok("%".to_owned()),
        letter => {
            let shown = String::from_utf8_lossy(letter.as_slice()).into_owned();
            Err(format!(
                "-o {given}: gpurec does not know %{shown}: use %h (host), %p (PID of gpurec), %t (start), %r (rank), or %% for a percent sign"
            ))
        }
    }
}

/// The number of an inherited descriptor: `-` or a path such as `/dev/fd/63`, which a shell passes for `>(...)`.
pub fn descriptor(path: &Path) -> Option<RawFd> {
    match path.to_str()? {
        "-" | "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        text => {
            let number = text.strip_prefix("/dev/fd/").or_else(|| text.strip_prefix("/proc/self/fd/"))?;
            number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok()).flatten()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use std::ffi::OsStr;

    use super::*;

    fn named(given: &str, rank: Option<&str>) -> Result<String, String> {
        let rank = || rank.map(str::to_owned);
        let letters = Letters { host: "a/b", start: UNIX_EPOCH, rank: &rank };
        expand(Path::new(given), &letters).map(|path| path.to_str().unwrap().to_owned())
    }

    #[test]
    fn letters_stand_for_what_they_say() {
        let (pid, stamp) = (std::process::id(), time::stamp(UNIX_EPOCH));
        let name = named("%%%h/%p.%t_%r.jsonl.zst", Some("7"));
        assert_eq!(name, Ok(format!("%a_b/{pid}.{stamp}_7.jsonl.zst")));
        assert_eq!(named("-", None), Ok("-".to_owned()));
        let raw = Path::new(OsStr::from_bytes(b"\xff%%"));
        let letters = Letters { host: "", start: UNIX_EPOCH, rank: &|| None };
        assert_eq!(expand(raw, &letters).unwrap().as_os_str().as_bytes(), b"\xff%");
    }

    #[test]
    fn what_stands_for_nothing_is_refused() {
        for given in ["x%", "x%d.jsonl", "%", "%P", "a%é"] {
            let said = named(given, Some("1")).unwrap_err();
            assert!(said.contains("%h (host)"), "{said}");
        }
        let said = named("%r.jsonl", None).unwrap_err();
        assert!(said.contains("SLURM_PROCID") && said.ends_with("set RANK, or use %p"), "{said}");
    }

    #[test]
    fn only_zstd_packs() {
        for (given, remedy) in [("t.jsonl.gz", "t.jsonl.zst"), ("T.XZ", "T.zst"), ("%h.bz2", "a_b.zst")] {
            let said = named(given, None).unwrap_err();
            assert!(said.ends_with(&format!("use {remedy}")), "{said}");
        }
        assert!(named("t.zst", None).is_ok() && named(".gz", None).is_ok() && named("gz", None).is_ok());
    }

    #[test]
    fn a_descriptor_is_known_by_its_name() {
        for (name, fd) in
            [("-", 1), ("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/63", 63), ("/proc/self/fd/3", 3)]
        {
            assert_eq!(descriptor(Path::new(name)), Some(fd), "{name}");
        }
        for name in
            ["/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/fd/3/x", "/dev/null", "./-", "/dev/fd/99999999999"]
        {
            assert_eq!(descriptor(Path::new(name)), None, "{name}");
        }
    }
}
