//! Core 0's own work: what it watches, reports and looks over while the other cores run guests.

pub mod audit;
pub mod iommu_faults;
pub mod live;
pub mod pauses;
