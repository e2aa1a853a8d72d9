// Package pki is the control plane's own certificate authority. The
// authority's key and the key that signs service account tokens last in a
// directory that only their owner may enter; every other identity is issued
// anew when it is needed, in memory, so that no role's key lies on a disk.
package pki
