//! The user's choice of Linux-side hooks. In: words of the command line. Out: the rows of the hook table to use. Pure.

use super::Backend;
use gpurec_nvidia::hooks::{Group, Hook};

#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// None: the default rows of every group.
    pub groups: Option<Vec<Group>>,
    /// Functions, globs and tracepoints in addition to the table.
    pub hooks: Vec<String>,
    /// Record only the driver's errors (Xids).
    pub xids_only: bool,
    /// Tests only: use no other backend.
    pub backend: Option<Backend>,
}

impl Choice {
    /// `ioctl,memory`, `irq`, `all`.
    pub fn parse(groups: &str) -> Result<Option<Vec<Group>>, String> {
        let mut list = Vec::new();
        for name in groups.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match (name, Group::from_name(name)) {
                ("all", _) => return Ok(Some(Group::ALL.to_vec())),
                (_, Some(group)) => list.push(group),
                _ => {
                    let names: Vec<&str> = Group::ALL.into_iter().map(Group::name).collect();
                    return Err(format!("{name} is not a group; give {} or all", names.join(", ")));
                }
            }
        }
        Ok((!list.is_empty()).then_some(list))
    }

    /// ioctls are always recorded, because they are the parent of everything else.
    pub fn wants(&self, group: Group) -> bool {
        group == Group::Ioctl || self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// A group that the user named contributes all its rows, even those with a high hit rate.
    pub fn takes(&self, hook: &Hook) -> bool {
        match &self.groups {
            Some(groups) if groups.contains(&hook.group) => true,
            Some(_) => hook.group == Group::Ioctl && hook.on,
            None => hook.on,
        }
    }
}
