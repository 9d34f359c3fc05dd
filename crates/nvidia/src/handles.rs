//! The classes of RM handles: (client, object) → class.
//!
//! In: objects that RM allocated, duplicated and freed. Out: the class of an object. Freeing an object frees everything
//! that was allocated under it, as in RM. If the recording began after the allocation of an object's parent, the object
//! is kept under a parent without a class, so that freeing that parent works too.
//!
//! The number of objects is bounded: at the limit, the table forgets the client that was allocated first, with all its
//! objects, and so also clients whose process ended without freeing them. If all objects belong to the current client,
//! the table does not keep the new object. Both cases are counted, and the class of a forgotten object is left out,
//! never guessed.

use std::collections::HashMap;

/// About 70 bytes each.
pub const LIMIT: usize = 1_000_000;

const NONE: u32 = u32::MAX;

/// An object in the tree; `first`, `prev` and `next` link a parent's children, newest first.
#[derive(Clone, Copy)]
struct Node {
    client: u32,
    object: u32,
    class: Option<u32>,
    parent: u32,
    first: u32,
    prev: u32,
    next: u32,
}

pub struct Handles {
    places: HashMap<(u32, u32), u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest_client: u32,
    oldest_client: u32,
    limit: usize,
    forgotten: u64,
}

impl Handles {
    pub fn new(limit: usize) -> Handles {
        Handles {
            places: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest_client: NONE,
            oldest_client: NONE,
            limit,
            forgotten: 0,
        }
    }

    /// The class of an object, if it is known.
    pub fn class(&self, client: u32, object: u32) -> Option<u32> {
        let place = self.places.get(&(client, object))?;
        self.node(*place)?.class
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The number of objects dropped for lack of room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Adds a client. An earlier client with that handle is gone.
    pub fn add_client(&mut self, client: u32, class: u32) {
        self.remove(client, client);
        self.place(client, client, NONE, Some(class));
    }

    /// Adds an object. `class` is `None` for a copy of an unknown object.
    pub fn add(&mut self, client: u32, parent: u32, object: u32, class: Option<u32>) {
        // RM never returns such handles; accepting them would create a cycle in the tree.
        if object == client || object == parent || object == 0 {
            return;
        }
        self.remove(client, object);
        let Some(root) = self.ensure(client, client, NONE) else { return };
        let Some(above) = self.ensure(client, parent, root) else { return };
        self.place(client, object, above, class);
    }

    /// Frees an object with everything under it.
    pub fn remove(&mut self, client: u32, object: u32) {
        let Some(top) = self.places.get(&(client, object)).copied() else { return };
        let mut at = top;
        while let Some(node) = self.node(at).copied() {
            if node.first != NONE {
                at = node.first;
                continue;
            }
            self.unlink(at, node);
            self.places.remove(&(node.client, node.object));
            self.free.push(at);
            if at == top {
                return;
            }
            at = node.parent;
        }
    }

    fn ensure(&mut self, client: u32, object: u32, parent: u32) -> Option<u32> {
        match self.places.get(&(client, object)) {
            Some(place) => Some(*place),
            None => self.place(client, object, parent, None),
        }
    }

    fn place(&mut self, client: u32, object: u32, parent: u32, class: Option<u32>) -> Option<u32> {
        if !self.make_room(client) {
            self.forgotten += 1;
            return None;
        }
        let next = self.first_of(parent);
        let node = Node { client, object, class, parent, first: NONE, prev: NONE, next };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).ok()?
            }
        };
        *self.nodes.get_mut(at as usize)? = node;
        if let Some(next) = self.node_mut(next) {
            next.prev = at;
        } else if parent == NONE {
            self.oldest_client = at;
        }
        self.set_first(parent, at);
        self.places.insert((client, object), at);
        Some(at)
    }

    /// Makes room for one more object, if necessary by dropping the oldest other clients. Returns false if there is
    /// none.
    fn make_room(&mut self, client: u32) -> bool {
        while self.places.len() >= self.limit {
            let mut oldest = self.oldest_client;
            if self.node(oldest).is_some_and(|n| n.client == client) {
                oldest = self.node(oldest).map_or(NONE, |n| n.prev);
            }
            let Some(node) = self.node(oldest).copied() else { return false };
            let before = self.places.len();
            self.remove(node.client, node.object);
            self.forgotten += (before - self.places.len()) as u64;
        }
        true
    }

    fn unlink(&mut self, at: u32, node: Node) {
        match self.node_mut(node.prev) {
            Some(prev) => prev.next = node.next,
            None => self.set_first(node.parent, node.next),
        }
        if let Some(next) = self.node_mut(node.next) {
            next.prev = node.prev;
        } else if self.oldest_client == at {
            self.oldest_client = node.prev;
        }
    }

    fn first_of(&self, parent: u32) -> u32 {
        self.node(parent).map_or(self.newest_client, |n| n.first)
    }

    fn set_first(&mut self, parent: u32, first: u32) {
        match self.node_mut(parent) {
            Some(node) => node.first = first,
            None => self.newest_client = first,
        }
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    fn node_mut(&mut self, at: u32) -> Option<&mut Node> {
        self.nodes.get_mut(at as usize)
    }
}
