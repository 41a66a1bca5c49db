//! The markup of the picture: the only place that writes it. What is given as text comes out as text, whatever it holds.

use std::fmt::Write as _;

/// Colours as classes: on a light page, and on a dark one. `f-` fills, `s-` strokes.
const STYLE: &str = "
text{font-family:'Helvetica Neue',Helvetica,Arial,'Liberation Sans',sans-serif;white-space:pre;fill:#2e3338}
.mono{font-family:ui-monospace,'SF Mono',Menlo,'Liberation Mono','DejaVu Sans Mono',Consolas,monospace}
.bold{font-weight:600}.italic{font-style:italic}.mid{text-anchor:middle}.white{fill:#fff}
.more{fill:#1a7f37}.less{fill:#c5303f}.strong{fill:#060607}.muted{fill:#68717b}.link{fill:#0066d6}
.f-page{fill:#fff}.f-code{fill:#f4f5f7}.f-chip{fill:#e8eaed}.f-bar{fill:#c8ccd1}.s-edge{fill:none;stroke:#dfe2e6}
.f-b1{fill:#5865f2}.f-b2{fill:#dfe1e5}.f-b3{fill:#248046}.f-b4{fill:#da373c}.on-b2{fill:#2e3338}
@media (prefers-color-scheme:dark){
text{fill:#dbdee1}.more{fill:#57c776}.less{fill:#ff7b80}.strong{fill:#f2f3f5}.muted{fill:#a3a9b1}.link{fill:#3ea6ff}.white{fill:#fff}
.f-page{fill:#313338}.f-code{fill:#282a2e}.f-chip{fill:#404249}.f-bar{fill:#5c6068}.s-edge{stroke:#43464d}
.f-b2{fill:#4e5058}.on-b2{fill:#fff}}
";

/// A length, to a tenth.
#[derive(Debug, Clone, Copy)]
struct Length(f64);

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.1}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

/// Text as it may stand between tags and in attributes: markup is taken apart, and what XML may not hold is replaced.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' => out.push(' '),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            // Directions of writing could show another order than is there.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                out.push('\u{fffd}')
            }
            c => out.push(c),
        }
    }
    out
}

/// A rectangle's place and size.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    /// Its left edge.
    pub x: f64,
    /// Its upper edge.
    pub y: f64,
    /// How wide.
    pub width: f64,
    /// How high.
    pub height: f64,
}

/// A drawing that grows.
#[derive(Debug, Default)]
pub struct Canvas {
    out: String,
}

impl Canvas {
    fn add(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.out, "{line}");
    }

    /// A rectangle with round corners.
    pub fn area(&mut self, class: &str, area: Area, radius: f64) {
        let [x, y, width, height, radius] = [area.x, area.y, area.width, area.height, radius].map(Length);
        let class = escape(class);
        self.add(format_args!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>"#
        ));
    }

    /// A circle of a colour.
    pub fn disc(&mut self, colour: &str, (x, y): (f64, f64), radius: f64) {
        let [x, y, radius] = [x, y, radius].map(Length);
        let colour = escape(colour);
        self.add(format_args!(r#"<circle fill="{colour}" cx="{x}" cy="{y}" r="{radius}"/>"#));
    }

    /// A text from a point on its base line.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), size: f64, text: &str) {
        let [x, y, size] = [x, y, size].map(Length);
        let (class, text) = (escape(class), escape(text));
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}" font-size="{size}" xml:space="preserve">{text}</text>"#
        ));
    }

    /// The same, made exactly that wide whatever the font is: for what has something beside it.
    pub fn fitted(&mut self, class: &str, (x, y): (f64, f64), size: f64, (text, width): (&str, f64)) {
        let [x, y, size, width] = [x, y, size, width].map(Length);
        let (class, text) = (escape(class), escape(text));
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}" font-size="{size}" textLength="{width}" lengthAdjust="spacingAndGlyphs" xml:space="preserve">{text}</text>"#
        ));
    }

    /// A shape in a square of 16, moved to a point. The shape is ours, never a text of somebody's.
    pub fn shape(&mut self, (x, y): (f64, f64), shape: &'static str) {
        let [x, y] = [x, y].map(Length);
        self.add(format_args!(r#"<g transform="translate({x} {y})">{shape}</g>"#));
    }

    /// What another one holds, on top of this.
    pub fn extend(&mut self, other: Self) {
        self.out.push_str(&other.out);
    }

    /// The whole file.
    #[must_use]
    pub fn file(&self, title: &str, width: f64, height: f64) -> String {
        let [width, height] = [width, height].map(Length);
        let title = escape(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             {}</svg>\n",
            self.out
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        for (text, want) in [
            ("a <b> & \"c\" 'd'", "a &lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;"),
            ("]]>&amp;", "]]&gt;&amp;amp;"),
            ("\u{0}\u{1b}[31m\tx", "\u{fffd}\u{fffd}[31m x"),
            ("a\u{202e}b", "a\u{fffd}b"),
            ("äöü 👀", "äöü 👀"),
        ] {
            assert_eq!(escape(text), want);
        }
    }

    #[test]
    fn lengths_are_short() {
        for (length, want) in [(1.0, "1"), (1.26, "1.3"), (0.0, "0"), (-2.04, "-2"), (100.0, "100")] {
            assert_eq!(Length(length).to_string(), want);
        }
    }
}
