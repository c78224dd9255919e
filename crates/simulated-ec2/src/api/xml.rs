//! XML by string: elements in the order of their calls.

pub struct Xml(String);

impl Xml {
    pub fn document() -> Self {
        Self("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned())
    }

    /// A part of a document.
    pub fn part() -> Self {
        Self(String::new())
    }

    pub fn finish(self) -> String {
        self.0
    }

    pub fn open(&mut self, name: &str) -> &mut Self {
        self.raw("<").raw(name).raw(">")
    }

    pub fn open_with(&mut self, name: &str, attributes: &str) -> &mut Self {
        self.raw("<").raw(name).raw(" ").raw(attributes).raw(">")
    }

    pub fn close(&mut self, name: &str) -> &mut Self {
        self.raw("</").raw(name).raw(">")
    }

    /// An element with other elements.
    pub fn within(&mut self, name: &str, content: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        self.open(name);
        content(self);
        self.close(name)
    }

    /// An element `name` with an element `item` for each item.
    pub fn items<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut content: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.open(name);
        for item in items {
            self.open("item");
            content(self, item);
            self.close("item");
        }
        self.close(name)
    }

    /// An element with a text.
    pub fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.open(name);
        self.escaped(text);
        self.close(name)
    }

    /// An element with a text, if there is one.
    pub fn optional(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    /// An element with a number or a truth value.
    pub fn value(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.text(name, &value.to_string())
    }

    pub fn raw(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    fn escaped(&mut self, text: &str) {
        if !text.contains(['<', '>', '&', '"', '\r', '\n', '\t']) {
            self.0.push_str(text);
            return;
        }
        for sign in text.chars() {
            match sign {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                '"' => self.0.push_str("&quot;"),
                '\r' | '\n' | '\t' => self.0.push_str(&format!("&#{};", u32::from(sign))),
                _ => self.0.push(sign),
            }
        }
    }
}
