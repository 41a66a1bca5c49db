//! Gateways whose server takes connections and answers nothing.

mod foreign;
