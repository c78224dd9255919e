//! The life of an own image: its import succeeds or fails, and it is deleted.

use serde_json::json;

use crate::state::fixtures::finish_image;
use crate::state::instance_steps::status_reason;
use crate::state::work::Step;
use crate::state::world::World;

impl World {
    pub fn finish_import(&mut self, id: &str) {
        let size_gb = self.knobs.image_gb;
        let Some(image) = self.images.get_mut(id).filter(|image| image.status() == "pending") else { return };
        match image.details.fate.take() {
            None => {
                finish_image(image.value_mut(), size_gb);
                self.history.ready(id, self.now);
            }
            Some(code) => {
                image.set_status("failed");
                image.value_mut()["status_reasons"] = json!([status_reason(&code)]);
            }
        }
    }

    pub fn begin_delete_image(&mut self, id: &str) {
        self.history.end_asked(id, "deleted", self.now);
        if let Some(image) = self.images.get_mut(id) {
            image.set_status("deleting");
        }
        let time = self.duration(self.knobs.image_delete_s);
        self.schedule(time, Step::ImageGone(id.to_owned()));
    }

    /// Removes an image at once.
    pub fn remove_image(&mut self, id: &str, reason: &str) {
        if self.images.remove(id).is_some() {
            self.history.ended(id, reason, self.now);
            self.stats.count_deleted("images");
        }
    }

    /// Number of the user's images.
    pub fn own_images(&self) -> usize {
        self.images.iter().filter(|image| image.details.is_own).count()
    }
}
