//! A control structure, read and written field by field.

use crate::Field;

/// A control structure: the processor's current one, or a model of one.
pub trait Area {
    /// What a field has.
    fn read(&self, field: Field) -> u64;
    /// Sets it.
    fn write(&mut self, field: Field, value: u64);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Fields that were written; others have 0. A field keeps no more than it is wide.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Model(pub BTreeMap<Field, u64>);

    impl Area for Model {
        fn read(&self, field: Field) -> u64 {
            self.0.get(&field).copied().unwrap_or(0)
        }

        fn write(&mut self, field: Field, value: u64) {
            assert!(value <= field.mask(), "{field:?} is too narrow for {value:#x}");
            self.0.insert(field, value);
        }
    }
}
