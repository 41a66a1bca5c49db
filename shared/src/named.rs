//! Enums whose variants have names.

/// Defines enums of variants with names. `ALL` has the variants in this order; `as_str` and `Display` give the
/// name.
#[macro_export]
macro_rules! named {
    ($($(#[$meta:meta])+ pub enum $enum:ident { $($(#[$doc:meta])+ $name:ident = $text:literal,)+ })+) => {$(
        $(#[$meta])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum { $($(#[$doc])+ $name,)+ }

        impl $enum {
            /// All variants.
            pub const ALL: [Self; [$($text,)+].len()] = [$(Self::$name,)+];

            /// Returns the name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )+};
}
