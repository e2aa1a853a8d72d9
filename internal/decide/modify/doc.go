// Package modify decides how a volume gets the attributes of another VolumeAttributesClass. Claims get the same status
// as from upstream's csi-resizer, so either program can continue where the other has stopped.
package modify
