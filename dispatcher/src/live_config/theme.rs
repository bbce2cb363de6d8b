//! What the operator changes of the pages' looks: the accent, and a logo.
//!
//! Invariant: both are files like the others, with a hash in their names, so pages need no style of
//! their own.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use weir_common::config::document::Document;
use weir_common::pages::assets::Asset;

use crate::config::settings::DashboardSettings;
use crate::domain::contrast::Color;

/// The largest logo: a page with all its files stays below 60 KiB.
const LOGO_BYTES_MAX: usize = 32 * 1024;

/// Texts on an accent.
const WHITE: Color = Color::new([0xff, 0xff, 0xff]);
const BLACK: Color = Color::new([0x10, 0x14, 0x18]);

/// The files of the operator's looks.
#[derive(Clone, Debug)]
pub struct Theme {
    /// The accents.
    pub style: Asset,
    /// The picture above each page.
    pub logo: Option<Asset>,
}

impl Theme {
    /// Reads the logo; or reports why it cannot be shown.
    #[must_use]
    pub fn read(settings: &DashboardSettings, document: &Document) -> Self {
        let style = style(settings.accent, settings.accent_dark);
        let logo = settings.logo.as_ref().and_then(|file| {
            let read = logo(Path::new(&file.value));
            let report = |why| document.fault(file.at, format!("dashboard.logo: {why}"));
            read.map_err(report).ok()
        });
        Self { style: Asset::new("theme", "css", "text/css; charset=utf-8", style), logo }
    }

    /// All files.
    pub fn assets(&self) -> impl Iterator<Item = &Asset> {
        [&self.style].into_iter().chain(&self.logo)
    }
}

fn style(light: Color, dark: Color) -> String {
    let rule = |accent: Color| {
        let text = accent.more_readable(WHITE, BLACK);
        format!(":root {{ --accent: {accent}; --on-accent: {text}; }}")
    };
    format!("{}\n@media (prefers-color-scheme: dark) {{ {} }}\n", rule(light), rule(dark))
}

fn logo(path: &Path) -> Result<Asset, String> {
    let shown = path.display();
    let content = read(path).map_err(|why| format!("cannot read `{shown}`: {why}"))?;
    if content.len() > LOGO_BYTES_MAX {
        return Err(format!("`{shown}` is larger than {LOGO_BYTES_MAX} bytes"));
    }
    if content.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Asset::new("logo", "png", "image/png", content));
    }
    if content.windows(4).any(|part| part == b"<svg") {
        return Ok(Asset::new("logo", "svg", "image/svg+xml", content));
    }
    Err(format!("`{shown}` is neither an SVG nor a PNG file"))
}

/// The file, up to one byte more than a logo may have.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(LOGO_BYTES_MAX as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_on_an_accent_is_the_one_that_is_read_better() {
        let color = |text: &str| Color::read(text).unwrap();
        let style = style(color("#1f5fbf"), color("#7fb2ff"));
        assert!(style.starts_with(":root { --accent: #1f5fbf; --on-accent: #ffffff; }"), "{style}");
        assert!(style.contains("dark) { :root { --accent: #7fb2ff; --on-accent: #101418; } }"));
    }

    #[test]
    fn a_logo_is_a_small_picture() {
        let folder = std::env::temp_dir().join(format!("weir-logo-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let check = |name: &str, content: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            logo(&path)
        };
        let svg = check("a.svg", b"<?xml version=\"1.0\"?><svg/>").unwrap();
        assert!(svg.path.starts_with("/assets/logo-") && svg.path.ends_with(".svg"));
        assert!(check("b", b"\x89PNG\r\n\x1a\nx").unwrap().path.ends_with(".png"));
        let large = [b"<svg".as_slice(), &[b' '; LOGO_BYTES_MAX]].concat();
        assert!(check("c", &large).unwrap_err().contains("is larger than"));
        assert!(check("d", b"<html>").unwrap_err().contains("neither an SVG nor a PNG"));
        assert!(logo(&folder.join("none")).unwrap_err().contains("cannot read"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
