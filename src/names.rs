//! Names of users and hosts in a static binary. In: nothing. Out: the C library looks them up only in files and by DNS.
//!
//! For other sources of nsswitch.conf (systemd, sss, ldap) the C library loads modules, and with them the machine's own
//! C library. If that has another version than the static one, the program crashes. So a static binary cannot look up a
//! user who is in no file: it knows only the ids and the name that sudo sets.

/// Call this before the first look-up, while there is one thread.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub fn load_no_modules() {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const libc::c_char, sources: *const libc::c_char)
        -> libc::c_int;
    }
    for (database, sources) in
        [(c"passwd", c"files"), (c"group", c"files"), (c"initgroups", c"files"), (c"hosts", c"files dns")]
    {
        // SAFETY: two terminated strings, which the C library copies. It fails for a name that it does not know.
        unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
    }
}

/// A dynamic binary runs with the machine's own C library, which can load its own modules.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn load_no_modules() {}
