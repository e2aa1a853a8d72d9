// Package storageprovider is a storage provider of systemd: its volumes are the claims of one namespace, its templates
// are the StorageClasses.
//
// The protocol is systemd's interface io.systemd.StorageProvider, by Varlink over a unix socket. Who acquires a volume
// is handed the open directory or device of a Pod, for which the node agent has mounted it. The protocol has no call
// that gives a volume back: so the Pod is deleted when the kernel shows no use of the volume any more, and the last
// call is long enough ago for the caller to have mounted what it was given. All that must survive is in the API, so
// that the process may be killed at any time.
package storageprovider
