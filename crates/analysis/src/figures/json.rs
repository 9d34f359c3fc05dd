//! Converts figures to JSON and back. An unknown figure is null; the observed number is under `seen`.

use serde::Deserialize;
use serde_json::Value;

use super::{BEFORE, BY_DEVICE, Figures, PEAK};

/// In older traces, everything held counted as a leak.
fn leaks_are_held(json: &mut Value) {
    for (at, leaks, held) in [
        ("/memory", "leaks", "held"),
        ("/unknown", "memory.leaks", "memory.held"),
        ("/seen", "memory.leaks", "memory.held"),
    ] {
        if let Some(object) = json.pointer_mut(at).and_then(|at| at.as_object_mut())
            && !object.contains_key(held)
            && let Some(all) = object.remove(leaks)
        {
            object.insert(held.to_owned(), all);
        }
    }
}

/// The places of a figure in JSON: one, or one for each of some processes or devices.
fn places<'a>(json: &'a mut Value, figure: &str, reason: &str) -> Vec<(String, &'a mut Value)> {
    if figure == PEAK {
        let mut places = Vec::new();
        let processes = json.get_mut("processes").and_then(|list| list.as_array_mut());
        for (at, process) in processes.into_iter().flatten().enumerate() {
            let is_concerned = reason != BEFORE || process.get("ran_before").is_some();
            for (key, value) in process.as_object_mut().filter(|_| is_concerned).into_iter().flatten() {
                if key.starts_with("peak_") {
                    places.push((format!("processes.{at}.{key}"), value));
                }
            }
        }
        return places;
    }
    if let Some(key) = figure.strip_prefix(BY_DEVICE) {
        let rows = json.get_mut("devices").and_then(|list| list.as_array_mut());
        let of_row =
            |(at, row): (usize, &'a mut Value)| Some((format!("devices.{at}.{key}"), row.get_mut(key)?));
        return rows.into_iter().flatten().enumerate().filter_map(of_row).collect();
    }
    let mut place = Some(json);
    for key in figure.split('.') {
        place = place.and_then(|place| place.get_mut(key));
    }
    place.map(|value| (figure.to_owned(), value)).into_iter().collect()
}

impl Figures {
    /// Writes null for each unknown figure.
    pub fn with_nulls(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        let mut seen = serde_json::Map::new();
        for (figure, reason) in &self.unknown {
            for (place, value) in places(&mut json, figure, reason) {
                seen.insert(place, value.take());
            }
        }
        if !seen.is_empty()
            && let Some(object) = json.as_object_mut()
        {
            object.insert("seen".to_owned(), seen.into());
        }
        json
    }

    pub fn from_json(json: &Value) -> Result<Figures, serde_json::Error> {
        let mut json = json.clone();
        leaks_are_held(&mut json);
        let seen = json.as_object_mut().and_then(|object| object.remove("seen"));
        let Some(Value::Object(mut seen)) = seen else { return Figures::deserialize(&json) };
        let unknown =
            json.get("unknown").and_then(|unknown| unknown.as_object()).cloned().unwrap_or_default();
        for (figure, reason) in &unknown {
            for (place, value) in places(&mut json, figure, reason.as_str().unwrap_or_default()) {
                if let Some(was) = seen.remove(&place) {
                    *value = was;
                }
            }
        }
        Figures::deserialize(&json)
    }
}
