// Package external connects a control plane to an etcd that others run. It waits until the store answers, says which
// members do, and refuses what would only wait while they have no quorum. All keys of a control plane are below a
// prefix, where one of them says whose they are.
package external
