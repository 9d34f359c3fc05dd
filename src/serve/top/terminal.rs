//! The view on a terminal. In: samples, and keys. Out: the screen. The view ends by a key, with the recording, or
//! because the process that started gpurec is gone; then it restores the terminal. While the terminal takes nothing
//! (Ctrl-S, a frozen ssh), the view leaves out screens, and still ends. Not here: what is shown (`model`) and how it
//! looks (`draw`).

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::unix::process::parent_id;
use std::rc::Rc;
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
    let _ = show(&mut samples, place, terminal);
    terminal.uncover();
}

fn show(samples: &mut Samples, place: &Place, terminal: &Terminal) -> io::Result<()> {
    let mut unwritten = Unwritten::default();
    unwritten.write_all(terminal.cover()?)?;
    let mut screen = ratatui::Terminal::new(CrosstermBackend::new(unwritten.clone()))?;
    let look = Look { has_colour: paper::colour() };
    let mut model = Model::default();
    let parent = parent_id();
    let (mut has_changed, mut is_spoiled) = (true, false);
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
        // One screen waits for the terminal, not more.
        if has_changed && unwritten.is_empty() {
            if std::mem::take(&mut is_spoiled) {
                let size = screen.size()?;
                screen.resize(size.into())?;
            }
            screen.draw(|frame| draw::draw(frame, &mut model, place, look))?;
            has_changed = false;
        }
        unwritten.write_to(terminal)?;
        if !event::poll(LOOK)? {
            continue;
        }
        has_changed = true;
        let event = event::read()?;
        if is_redraw(&event) {
            is_spoiled = true;
        } else if key_of(&event).is_some_and(|key| model.key(key) == Next::Quit) {
            break;
        }
    }
    Ok(())
}

/// Output that the terminal has not taken yet.
#[derive(Clone, Default)]
struct Unwritten(Rc<RefCell<Vec<u8>>>);

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn write_to(&self, terminal: &Terminal) -> io::Result<()> {
        let mut bytes = self.0.borrow_mut();
        loop {
            match terminal.write(&bytes)? {
                0 => return Ok(()),
                written => drop(bytes.drain(..written)),
            }
        }
    }
}

impl Write for Unwritten {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
