//! A znode tree as ZooKeeper defines it: versions, sequences, ephemerals, sessions, transactions, watches.
