//! Lists of the Describe calls: objects by id or by filters, in pages.

use std::ops::RangeInclusive;

use crate::api::filters::{Filters, Resource};
use crate::api::xml::Xml;
use crate::region::table::Table;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

/// A list that a call requests.
pub struct Query<'a> {
    pub form: &'a Form,
    /// The name of the parameter with ids.
    pub ids: &'a str,
    /// The name of the parameter with filters.
    pub filters: &'a str,
    /// The code of the error for an unknown id, and the noun of its message.
    pub not_found: (&'a str, &'a str),
    /// The values of `MaxResults` that the call accepts.
    pub sizes: RangeInclusive<usize>,
    /// The knob `page_limit`.
    pub page_limit: usize,
}

pub struct Page<'t, T> {
    pub rows: Vec<&'t T>,
    pub next: Option<String>,
}

impl<'t, T> Page<'t, T> {
    /// Writes the list, and the token of the next page if there is one.
    pub fn write(&self, xml: &mut Xml, name: &str, content: impl Fn(&mut Xml, &T)) {
        xml.items(name, self.rows.iter().copied(), |xml, row: &'t T| content(xml, row));
        xml.optional("nextToken", self.next.as_deref());
    }
}

impl Query<'_> {
    /// The objects of this page; objects that are not visible do not exist for the client.
    pub fn page<'t, T: Resource>(
        &self,
        table: &'t Table<T>,
        is_visible: impl Fn(&T) -> bool,
    ) -> ApiResult<Page<'t, T>> {
        let filters = Filters::new(self.form, self.filters);
        let ids = self.form.list(self.ids);
        if !ids.is_empty() {
            let mut rows = Vec::new();
            for row in self.by_ids(table, &ids, is_visible)? {
                if filters.match_one(row)? {
                    rows.push(row);
                }
            }
            return Ok(Page { rows, next: None });
        }
        let (after, limit) = (self.after()?, self.limit()?);
        let mut page = Page { rows: Vec::new(), next: None };
        let mut last = after;
        for (number, row) in table.after(after) {
            if !is_visible(row) || !filters.match_one(row)? {
                continue;
            }
            if page.rows.len() == limit {
                page.next = Some(format!("page-after-{last}"));
                break;
            }
            last = number;
            page.rows.push(row);
        }
        Ok(page)
    }

    fn by_ids<'t, T: Resource>(
        &self,
        table: &'t Table<T>,
        ids: &[&str],
        is_visible: impl Fn(&T) -> bool,
    ) -> ApiResult<Vec<&'t T>> {
        let found = |id: &&str| table.get(id).filter(|row| is_visible(row));
        let unknown: Vec<&str> = ids.iter().copied().filter(|id| found(id).is_none()).collect();
        match unknown.is_empty() {
            true => Ok(ids.iter().filter_map(found).collect()),
            false => Err(not_found(self.not_found, &unknown)),
        }
    }

    fn after(&self) -> ApiResult<u64> {
        let Some(token) = self.form.get("NextToken") else { return Ok(0) };
        let number = token.strip_prefix("page-after-").and_then(|number| number.parse().ok());
        number.ok_or_else(|| ApiError::new("InvalidNextToken", "The token is not valid"))
    }

    fn limit(&self) -> ApiResult<usize> {
        let wanted: Option<usize> = self.form.number("MaxResults")?;
        if let Some(wanted) = wanted
            && !self.sizes.contains(&wanted)
        {
            let (least, most) = (self.sizes.start(), self.sizes.end());
            let text = format!(
                "Value ( {wanted} ) for parameter maxResults is invalid. Expecting a value of {least} to {most}."
            );
            return Err(ApiError::invalid(text));
        }
        let maximum = if self.page_limit == 0 { usize::MAX } else { self.page_limit };
        Ok(wanted.map_or(maximum, |wanted| wanted.min(maximum)))
    }
}

/// The error for unknown ids: "The instance ID 'i-1' does not exist", or "The instance IDs 'i-1, i-2' do not exist".
pub fn not_found((code, noun): (&str, &str), ids: &[&str]) -> ApiError {
    let listed = ids.join(", ");
    ApiError::new(
        code,
        match ids.len() {
            1 => format!("The {noun} '{listed}' does not exist"),
            _ => format!("The {noun}s '{listed}' do not exist"),
        },
    )
}
