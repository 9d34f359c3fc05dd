//! The view on a terminal. In: samples, and keys. Out: the screen. The view ends by a key, with the recording, or
//! because the process that started gpurec is gone; then it restores the terminal. Not here: what is shown (`model`)
//! and how it looks (`draw`).

use std::io::{self, BufWriter};
use std::os::unix::process::parent_id;
use std::sync::Arc;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::{self, Look};
use super::model::{Key, Model, Next};
use super::{LOOK, Place, Samples};
use crate::process::terminal::Terminal;
use gpurec_analysis::paper;

pub fn run(mut samples: Samples, place: &Place, terminal: &Arc<Terminal>) {
    terminal.uncover_at_panic();
    // Every error here means that the terminal is gone, so there is no place for a message.
    let _ = terminal.cover().and_then(|()| show(&mut samples, place, terminal));
    terminal.uncover();
}

fn show(samples: &mut Samples, place: &Place, terminal: &Terminal) -> io::Result<()> {
    let backend = CrosstermBackend::new(BufWriter::new(terminal.output()?));
    let mut screen = ratatui::Terminal::new(backend)?;
    let look = Look { has_colour: paper::colour() };
    let mut model = Model::default();
    let parent = parent_id();
    let mut has_changed = true;
    // A panic of another thread has uncovered the terminal.
    while !samples.is_stopped() && terminal.is_covered() {
        // If the shell or the sudo that waited for gpurec is gone, another program may use the terminal.
        if parent_id() != parent {
            break;
        }
        if let Some(sample) = samples.take(model.wanted()) {
            model.update(sample.activity, sample.state.now, sample.is_first);
            has_changed = true;
        }
        if has_changed {
            screen.draw(|frame| draw::draw(frame, &mut model, place, look))?;
        }
        has_changed = event::poll(LOOK)?;
        if !has_changed {
            continue;
        }
        let event = event::read()?;
        if is_redraw(&event) {
            screen.clear()?;
        } else if key_of(&event).is_some_and(|key| model.key(key) == Next::Quit) {
            break;
        }
    }
    Ok(())
}

/// Ctrl-L redraws a screen on which another program has written.
fn is_redraw(event: &Event) -> bool {
    let redraw = KeyEvent::new(KeyCode::Char('l'), KeyModifiers::CONTROL);
    matches!(event, Event::Key(key) if *key == redraw)
}

fn key_of(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return None };
    if *kind == KeyEventKind::Release {
        return None;
    }
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => return None,
        KeyCode::Char(c) => Key::Char(*c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
