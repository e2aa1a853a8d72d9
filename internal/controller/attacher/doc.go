// Package attacher has drivers attach and detach what VolumeAttachments ask
// for. Everything that a detach needs is on the attachment before the driver
// is called to attach.
package attacher
