//! Options of a recording that leave CUDA functions out. In: its header. Out: whether a function was recorded, and the
//! options in words. Not here: the consequences for figures; unknown.rs has those.

use glob::Pattern;

use gpurec_cuda::{self as cuda, Api};
use gpurec_trace::Header;

#[derive(Clone, Debug)]
pub struct LeftOut {
    only: Vec<Pattern>,
    skip: Vec<Pattern>,
    api: Option<Api>,
    /// `the recording had --only cuMem*`.
    pub text: String,
}

impl LeftOut {
    /// None if the recording leaves nothing out.
    pub fn of(header: &Header) -> Option<LeftOut> {
        let words = |key: &str| -> Vec<&str> {
            let list = header.options.get(key).and_then(|list| list.as_array());
            list.into_iter().flatten().filter_map(|word| word.as_str()).collect()
        };
        let patterns =
            |key: &str| words(key).iter().filter_map(|word| Pattern::new(word).ok()).collect::<Vec<_>>();
        let list = |key: &str| {
            let words = words(key);
            let first = words.get(..3).unwrap_or(&words).join(" ");
            let more = words.len().saturating_sub(3);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            (!words.is_empty()).then(|| format!("--{key} {first}{more}"))
        };
        let mut said: Vec<String> = ["only", "skip"].into_iter().filter_map(list).collect();
        let api = header.options.get("api").and_then(|api| api.as_str());
        said.extend(api.map(|api| format!("--api {api}")));
        let api = match api {
            Some("driver") => Some(Api::Driver),
            Some("runtime") => Some(Api::Runtime),
            _ => None,
        };
        (!said.is_empty()).then(|| LeftOut {
            only: patterns("only"),
            skip: patterns("skip"),
            api,
            text: format!("the recording had {}", said.join(", ")),
        })
    }

    pub fn records(&self, name: &str) -> bool {
        let fits = |pattern: &Pattern| cuda::fits(pattern, name);
        (self.only.is_empty() || self.only.iter().any(fits))
            && !self.skip.iter().any(fits)
            && self.api.is_none_or(|api| api == cuda::api(name))
    }
}
