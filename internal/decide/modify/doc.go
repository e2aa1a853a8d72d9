// Package modify decides how a volume gets the attributes of another VolumeAttributesClass. What a claim says of it is
// what upstream's csi-resizer writes, so that either can go on where the other has stopped.
package modify
