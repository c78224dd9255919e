//! CreateLaunchTemplate, DescribeLaunchTemplates, DeleteLaunchTemplate, and the use of templates.

use std::collections::BTreeSet;

use crate::api::filters::Filters;
use crate::api::xml::Xml;
use crate::region::objects::LaunchTemplate;
use crate::region::region::Ec2;
use crate::region::tags;
use crate::server::form::Form;
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn create_launch_template(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        if let Some(ids) = self.repeated("CreateLaunchTemplate", form)?
            && let Some(template) = self.region.templates.get(&ids[0])
        {
            write(xml, "launchTemplate", template);
            return Ok(());
        }
        let name = form.required("LaunchTemplateName")?;
        let is_allowed = |sign: char| sign.is_ascii_alphanumeric() || "()./_-".contains(sign);
        if !(3..=128).contains(&name.len()) || !name.chars().all(is_allowed) {
            let text = "Launch template name must be between 3 and 128 characters, and may contain letters, numbers, and \
                        the following characters: - ( ) . / _.";
            return Err(ApiError::new("InvalidLaunchTemplateName.MalformedException", text));
        }
        if self.region.templates.values().any(|template| template.name == name) {
            let text = "Launch template name already in use.";
            return Err(ApiError::new("InvalidLaunchTemplateName.AlreadyExistsException", text));
        }
        let tags = tags::specified_for(form, "launch-template")?;
        let template = LaunchTemplate {
            id: self.world.new_id("lt"),
            name: name.to_owned(),
            data: form.below("LaunchTemplateData."),
            creator: format!("arn:aws:iam::{}:user/simulated", self.world.options.account),
            created: self.world.timestamp(),
            tags,
        };
        self.created("launch_templates", &template.id, name, &template.tags);
        self.remember("CreateLaunchTemplate", form, vec![template.id.clone()]);
        write(xml, "launchTemplate", &template);
        self.region.templates.insert(&template.id.clone(), template);
        Ok(())
    }

    pub fn describe_launch_templates(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let names = form.list("LaunchTemplateName");
        if names.is_empty() {
            let not_found = ("InvalidLaunchTemplateId.NotFound", "launch template ID");
            let mut query = self.query(form, "LaunchTemplateId", not_found);
            query.sizes = 1..=200;
            let page = query.page(&self.region.templates, |_| true)?;
            page.write(xml, "launchTemplates", write_fields);
            return Ok(());
        }
        let filters = Filters::new(form, "Filter");
        let mut found = Vec::new();
        for name in names {
            let template = self.template(None, Some(name))?;
            if filters.match_one(template)? {
                found.push(template);
            }
        }
        xml.items("launchTemplates", found, write_fields);
        Ok(())
    }

    pub fn delete_launch_template(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let template = self.template(form.get("LaunchTemplateId"), form.get("LaunchTemplateName"))?;
        write(xml, "launchTemplate", template);
        let id = template.id.clone();
        self.region.templates.remove(&id);
        self.deleted("launch_templates", &id);
        Ok(())
    }

    /// The template with this id or name.
    pub fn template(&self, id: Option<&str>, name: Option<&str>) -> ApiResult<&LaunchTemplate> {
        let templates = &self.region.templates;
        let not_found = |code: &str, text: String| ApiError::new(code, text);
        match (id, name) {
            (Some(id), None) => templates.get(id).ok_or_else(|| {
                let text = format!("The specified launch template, with template ID {id}, does not exist.");
                not_found("InvalidLaunchTemplateId.NotFound", text)
            }),
            (None, Some(name)) => templates.values().find(|template| template.name == name).ok_or_else(|| {
                let text = format!("The specified launch template, with template name {name}, does not exist.");
                not_found("InvalidLaunchTemplateName.NotFoundException", text)
            }),
            _ => {
                let text = "Either the ID or the name of the launch template must be specified.";
                Err(ApiError::new("MissingParameter", text))
            }
        }
    }

    /// The parameters of a launch, with those of its template that the launch does not set.
    pub fn with_template(&self, form: &Form) -> ApiResult<Form> {
        let (id, name) = (form.get("LaunchTemplate.LaunchTemplateId"), form.get("LaunchTemplate.LaunchTemplateName"));
        if id.is_none() && name.is_none() {
            return Ok(form.clone());
        }
        let template = self.template(id, name)?;
        Ok(merged(&template.data, form))
    }
}

/// These parameters with those of another form, which replace each group: all `Placement.…`, all `TagSpecification.…`.
pub fn merged(base: &Form, other: &Form) -> Form {
    let group = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let replaced: BTreeSet<String> = other.0.keys().map(|name| group(name)).collect();
    let kept = base.0.iter().filter(|(name, _)| !replaced.contains(&group(name)));
    let pairs = kept.chain(&other.0).map(|(name, value)| (name.clone(), value.clone()));
    Form(pairs.collect())
}

fn write(xml: &mut Xml, name: &str, template: &LaunchTemplate) {
    xml.open(name);
    write_fields(xml, template);
    xml.close(name);
}

fn write_fields(xml: &mut Xml, template: &LaunchTemplate) {
    xml.text("launchTemplateId", &template.id).text("launchTemplateName", &template.name);
    xml.text("createTime", &template.created).text("createdBy", &template.creator);
    xml.value("defaultVersionNumber", 1).value("latestVersionNumber", 1);
    tags::write(xml, &template.tags);
}
