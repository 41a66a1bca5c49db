//! Embeds: boxes with a coloured edge below a message.

use crate::core::payload_limits::{PayloadLimit, ValidationError, utf16_len};
use serde::Serialize;

/// Embed of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Embed {
    /// Title.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Link of the title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Colour of the edge, as 0xRRGGBB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<u32>,
    /// Fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Field>,
    /// Last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footer: Option<Footer>,
    /// First line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
}

/// Field of an embed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// True if other fields may share its line.
    pub inline: bool,
}

/// Last line of an embed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Footer {
    /// Text.
    pub text: String,
}

/// First line of an embed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Author {
    /// Text.
    pub name: String,
}

impl Embed {
    /// Size that counts towards the limit for all embeds of a message.
    fn text_len(&self) -> usize {
        let fields = self.fields.iter().map(|field| utf16_len(&field.name) + utf16_len(&field.value));
        let lines = self
            .footer
            .iter()
            .map(|f| utf16_len(&f.text))
            .chain(self.author.iter().map(|a| utf16_len(&a.name)));
        utf16_len(&self.title) + utf16_len(&self.description) + fields.sum::<usize>() + lines.sum::<usize>()
    }

    fn check(&self) -> Result<(), ValidationError> {
        PayloadLimit::EmbedTitle.text(&self.title)?;
        PayloadLimit::EmbedDescription.text(&self.description)?;
        PayloadLimit::EmbedFields.number(self.fields.len())?;
        for field in &self.fields {
            PayloadLimit::FieldName.text(&field.name)?;
            PayloadLimit::FieldValue.text(&field.value)?;
        }
        if let Some(footer) = &self.footer {
            PayloadLimit::EmbedFooter.text(&footer.text)?;
        }
        if let Some(author) = &self.author {
            PayloadLimit::EmbedAuthor.text(&author.name)?;
        }
        if self.color.is_some_and(|color| color > 0xff_ffff) {
            return Err(ValidationError::Form("a colour is at most 0xffffff"));
        }
        Ok(())
    }
}

/// Checks the embeds of a message.
///
/// # Errors
/// [`ValidationError`] if an embed exceeds Discord's limits.
pub fn check(embeds: &[Embed]) -> Result<(), ValidationError> {
    PayloadLimit::Embeds.number(embeds.len())?;
    embeds.iter().try_for_each(Embed::check)?;
    PayloadLimit::EmbedTexts.number(embeds.iter().map(Embed::text_len).sum())
}

#[cfg(test)]
mod tests {
    use super::{Author, Embed, Field, Footer, check};
    use serde_json::json;

    #[test]
    fn embeds_have_bounds() {
        let text = |n: usize| "x".repeat(n);
        let field = |name: usize, value: usize| Field { name: text(name), value: text(value), inline: true };
        let with = |change: &dyn Fn(&mut Embed)| {
            let mut embed = Embed { title: "t".to_owned(), ..Embed::default() };
            change(&mut embed);
            embed
        };
        for (row, embeds, fits) in [
            ("ten", vec![Embed::default(); 10], true),
            ("eleven", vec![Embed::default(); 11], false),
            ("title", vec![with(&|e| e.title = text(256))], true),
            ("title", vec![with(&|e| e.title = text(257))], false),
            ("description", vec![with(&|e| e.description = text(4096))], true),
            ("description", vec![with(&|e| e.description = text(4097))], false),
            ("fields", vec![with(&|e| e.fields = vec![field(1, 1); 25])], true),
            ("fields", vec![with(&|e| e.fields = vec![field(1, 1); 26])], false),
            ("field", vec![with(&|e| e.fields = vec![field(0, 1)])], false),
            ("field", vec![with(&|e| e.fields = vec![field(1, 1025)])], false),
            ("footer", vec![with(&|e| e.footer = Some(Footer { text: text(2049) }))], false),
            ("author", vec![with(&|e| e.author = Some(Author { name: text(257) }))], false),
            ("colour", vec![with(&|e| e.color = Some(0x100_0000))], false),
            ("all texts", vec![with(&|e| e.description = text(3000)); 2], false),
        ] {
            assert_eq!(check(&embeds).is_ok(), fits, "{row}");
        }
        let embed = with(&|e| e.fields = vec![field(1, 2)]);
        let expected = json!({"title": "t", "fields": [{"name": "x", "value": "xx", "inline": true}]});
        assert_eq!(serde_json::to_value(embed).ok(), Some(expected));
    }
}
