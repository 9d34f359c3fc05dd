//! Readable names of functions. In: a symbol. Out: the function without the types of its parameters, as debuggers write
//! it. A name that cannot be read stays as it is.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

use super::{LONGEST, bounded};

pub fn readable(name: &str) -> String {
    // A version that the dynamic linker chooses by: memcpy@@GLIBC_2.14.
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    bounded(rust(name).or_else(|| cpp(name)).unwrap_or_else(|| name.to_owned()))
}

fn rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Limited(String::new());
    // Without the hash. An error means that the text is long enough.
    let _ = write!(text, "{symbol:#}");
    Some(text.0).filter(|text| !text.is_empty())
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let limits = ParseOptions::default().recursion_limit(128);
    let symbol = Symbol::new_with_options(name, &limits).ok()?;
    let options = DemangleOptions::default().no_params().no_return_type().recursion_limit(128);
    let mut text = Limited(String::new());
    match symbol.structured_demangle(&mut text, &options) {
        Ok(()) => Some(text.0),
        Err(_) => (text.0.len() > LONGEST).then_some(text.0),
    }
}

/// Ends a demangler whose text becomes too long.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text.get(..LONGEST + 1).unwrap_or(text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_in_debuggers() {
        for (symbol, name) in [
            ("main", "main"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("_ZN2at6native3addERKNS_6TensorES3_", "at::native::add"),
            ("_Z3maxIiET_S0_S0_", "max<int>"),
            ("_ZN4core3ptr4drop17h0123456789abcdefE", "core::ptr::drop"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Znot", "_Znot"),
            ("work.part.0", "work.part.0"),
        ] {
            assert_eq!(readable(symbol), name, "{symbol}");
        }
        assert!(readable(&"x".repeat(100_000)).len() < LONGEST + 8);
    }
}
