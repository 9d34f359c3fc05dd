//! The HTML document around the data. In: the data, as JSON and bytes. Out: one file that loads nothing: its style and its
//! script may be those of this program alone, by their hashes, and the data is compressed and in base64, so that no text
//! of a trace can be markup. Not here: what the data is.

use std::io::{self, BufWriter, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::base64::base64;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");

/// The modules of the script, each after those that it imports.
const MODULES: &[&str] = &[
    include_str!("text.mjs"),
    include_str!("decode.mjs"),
    include_str!("model.mjs"),
    include_str!("viewport.mjs"),
    include_str!("rows.mjs"),
    include_str!("tree.mjs"),
    include_str!("chart.mjs"),
    include_str!("dom.mjs"),
    include_str!("table.mjs"),
    include_str!("overview.mjs"),
    include_str!("reports.mjs"),
    include_str!("paint.mjs"),
    include_str!("panel.mjs"),
    include_str!("timeline.mjs"),
    include_str!("flame.mjs"),
    include_str!("charts.mjs"),
    include_str!("together.mjs"),
    include_str!("main.mjs"),
];

/// Writes the page; each block is an id and its compressed bytes.
pub fn write(out: &mut Vec<u8>, blocks: &[(&str, &[u8])]) {
    let script = script();
    let mut data = Vec::new();
    for (id, bytes) in blocks {
        data.extend_from_slice(format!("<script type=\"text/plain\" id=\"{id}\">").as_bytes());
        base64(&mut data, bytes);
        data.extend_from_slice(b"</script>\n");
    }
    let mut page = PAGE;
    for (mark, text) in [
        ("@SCRIPT_HASH@", hash(&script).as_bytes()),
        ("@STYLE_HASH@", hash(STYLE).as_bytes()),
        ("@STYLE@", STYLE.as_bytes()),
        ("@DATA@", &data),
        ("@SCRIPT@", script.as_bytes()),
    ] {
        let (before, after) = page.split_once(mark).unwrap_or((page, ""));
        out.extend_from_slice(before.as_bytes());
        out.extend_from_slice(text);
        page = after;
    }
    out.extend_from_slice(page.as_bytes());
}

/// The modules as one, which imports and exports nothing.
fn script() -> String {
    let lines = MODULES.iter().flat_map(|module| module.lines()).filter(|line| !line.starts_with("import "));
    lines.flat_map(|line| [line.strip_prefix("export ").unwrap_or(line), "\n"]).collect()
}

/// As a Content-Security-Policy names what it allows.
fn hash(text: &str) -> String {
    let mut hash = b"sha256-".to_vec();
    base64(&mut hash, &Sha256::digest(text.as_bytes()));
    String::from_utf8_lossy(&hash).into_owned()
}

/// Compresses what `write` writes, as it is written.
pub fn packed(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Vec<u8> {
    let mut encoder = BufWriter::new(GzEncoder::new(Vec::new(), Compression::default()));
    // Memory takes all that is written to it.
    let _ = write(&mut encoder);
    encoder.into_inner().ok().and_then(|encoder| encoder.finish().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_module_without_imports() {
        let script = script();
        assert!(!script.lines().any(|line| line.starts_with("import ") || line.starts_with("export ")));
        assert!(!script.contains("</script") && !STYLE.contains("</style"));
        let mut names: Vec<&str> = script
            .lines()
            .filter_map(|line| {
                ["function ", "async function ", "class ", "const ", "let "]
                    .iter()
                    .find_map(|word| line.strip_prefix(word))
            })
            .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next())
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable();
        let twice: Vec<&&str> =
            names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
        assert!(twice.is_empty(), "one script cannot have two of the same name: {twice:?}");
    }

    #[test]
    fn a_page_is_whole_and_loads_nothing() {
        let mut out = Vec::new();
        write(&mut out, &[("data", b"{\"<script>\":1}"), ("slices", b"")]);
        let page = String::from_utf8(out).expect("text");
        for mark in ["@STYLE", "@SCRIPT", "@DATA", "http:", "https:", "src=", "@import", "url(", "<script>\""]
        {
            assert!(!page.contains(mark), "{mark}");
        }
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        let policy = page.split_once("Content-Security-Policy\" content=\"").expect("a policy").1;
        let policy = policy.split_once('"').expect("its end").0;
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"));
        assert!(policy.contains(&hash(STYLE)) && policy.contains(&hash(&script())));
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
