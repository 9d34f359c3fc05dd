//! A map for the few maps that every line of a trace uses, where the standard hash took a tenth of the time. Its seed
//! is random, as the standard hash's is, so that a trace cannot be made to collide.

pub type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
