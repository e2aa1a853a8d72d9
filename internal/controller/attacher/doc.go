// Package attacher calls drivers to attach and detach volumes as VolumeAttachments require. Before
// it calls a driver to attach, it writes to the attachment everything that the detach will need.
package attacher
