//! A client of EC2 for tests: calls as plain forms, and tolerant reading of XML. It signs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use quick_xml::Reader;
use quick_xml::events::Event;
use testkit::clouds::moto::REGION;

pub const TIMEOUT: Duration = Duration::from_secs(60);
const VERSION: &str = "2016-11-15";

/// Calls one endpoint.
#[derive(Clone)]
pub struct Ec2 {
    pub http: reqwest::Client,
    pub base: String,
}

/// An answer with its XML; an answer without XML has an empty element.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
    pub xml: Element,
}

/// An XML element, without its attributes and namespace.
#[derive(Clone, Debug, Default)]
pub struct Element {
    pub name: String,
    text: String,
    children: Vec<Element>,
}

/// An Authorization header with the scope of a service, and without a valid signature.
pub fn authorization(service: &str) -> String {
    let scope = format!("testing/20260101/{REGION}/{service}/aws4_request");
    format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0")
}

impl Ec2 {
    pub fn new(base: &str) -> Ec2 {
        // No idle connections: the server may close one at the moment of its reuse.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(TIMEOUT).build();
        Ec2 { http: http.expect("a plain client can be built"), base: base.to_owned() }
    }

    /// Calls an action; the error is a connection without a complete answer.
    pub async fn try_call(&self, action: &str, parameters: &[(&str, &str)]) -> Result<Answer, reqwest::Error> {
        let form = [&[("Action", action), ("Version", VERSION)], parameters].concat();
        let request = self.http.post(format!("{}/", self.base)).header("Authorization", authorization("ec2"));
        Answer::read(request.form(&form).send().await?).await
    }

    /// Calls an action, whatever its answer is.
    pub async fn call(&self, action: &str, parameters: &[(&str, &str)]) -> Answer {
        self.try_call(action, parameters).await.unwrap_or_else(|error| panic!("{action}: {error:?}"))
    }

    /// The XML of an action that succeeds.
    pub async fn ok(&self, action: &str, parameters: &[(&str, &str)]) -> Element {
        self.call(action, parameters).await.expect_ok()
    }

    /// The keys of the objects of a bucket.
    pub async fn objects(&self, bucket: &str) -> Vec<String> {
        let request = self.http.get(format!("{}/{bucket}?list-type=2", self.base));
        let response = request.header("Authorization", authorization("s3")).send().await.expect("S3 answers");
        let listing = Answer::read(response).await.expect("the answer is complete").expect_ok();
        listing.children("Contents").iter().map(|entry| entry.find("Key").text().to_owned()).collect()
    }
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Result<Answer, reqwest::Error> {
        let status = response.status().as_u16();
        let text = response.text().await?;
        let xml = Element::parse(&text).unwrap_or_default();
        Ok(Answer { status, text, xml })
    }

    /// The XML of a successful answer.
    #[track_caller]
    pub fn expect_ok(self) -> Element {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text);
        self.xml
    }

    /// Asserts that the answer is an error with this status and code, in the envelope of EC2; returns its message.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) -> String {
        let error = self.xml.find("Errors").child("Error");
        assert_eq!((self.status, error.text_of("Code")), (status, Some(code)), "{}", self.text);
        assert_eq!(self.xml.name, "Response", "{}", self.text);
        error.text_of("Message").unwrap_or_default().to_owned()
    }
}

static NOTHING: Element = Element { name: String::new(), text: String::new(), children: Vec::new() };

impl Element {
    /// The root element of a document; `None` if the text is not XML.
    pub fn parse(text: &str) -> Option<Element> {
        let mut reader = Reader::from_str(text);
        let mut open = vec![Element::default()];
        loop {
            match reader.read_event().ok()? {
                Event::Start(start) => {
                    let name = start.local_name().as_ref().to_owned();
                    open.push(Element { name, ..Element::default() });
                }
                Event::Empty(start) => {
                    let name = start.local_name().as_ref().to_owned();
                    open.last_mut()?.children.push(Element { name, ..Element::default() });
                }
                Event::Text(text) => open.last_mut()?.text.push_str(&text),
                Event::GeneralRef(reference) => {
                    let letter = match reference.resolve_char_ref().ok()? {
                        Some(letter) => letter.to_string(),
                        None => quick_xml::escape::resolve_predefined_entity(&reference)?.to_owned(),
                    };
                    open.last_mut()?.text.push_str(&letter);
                }
                Event::End(_) => {
                    let element = open.pop()?;
                    open.last_mut()?.children.push(element);
                }
                Event::Eof => return open.pop()?.children.into_iter().next(),
                _ => {}
            }
        }
    }

    pub fn text(&self) -> &str {
        self.text.trim()
    }

    /// The children of this name.
    pub fn children(&self, name: &str) -> Vec<&Element> {
        self.children.iter().filter(|child| child.name == name).collect()
    }

    /// The first child of this name, or an empty element.
    pub fn child(&self, name: &str) -> &Element {
        self.children.iter().find(|child| child.name == name).unwrap_or(&NOTHING)
    }

    /// The first element of this name at any depth, or an empty element.
    pub fn find(&self, name: &str) -> &Element {
        self.search(name).unwrap_or(&NOTHING)
    }

    /// All elements of this name at any depth, in order.
    pub fn all(&self, name: &str) -> Vec<&Element> {
        let mut found = self.children(name);
        found.extend(self.children.iter().flat_map(|child| child.all(name)));
        found
    }

    /// The text of the first element of this name at any depth; `None` if there is none, or it is empty.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.search(name).map(Element::text).filter(|text| !text.is_empty())
    }

    /// Breadth first, so that a near element is found before one of a part.
    fn search(&self, name: &str) -> Option<&Element> {
        let mut level: Vec<&Element> = vec![self];
        while !level.is_empty() {
            let next: Vec<&Element> = level.iter().flat_map(|element| element.children.iter()).collect();
            if let Some(found) = next.iter().find(|element| element.name == name) {
                return Some(found);
            }
            level = next;
        }
        None
    }
}

/// The tags of a resource.
pub fn tags(resource: &Element) -> BTreeMap<String, String> {
    let items = resource.child("tagSet").children("item").into_iter();
    items.map(|item| (item.child("key").text().to_owned(), item.child("value").text().to_owned())).collect()
}
