// Package external connects a control plane to an etcd that others run. It waits until the store responds, reports
// which members do, and refuses calls that would only wait while there is no quorum. All keys of a control plane are
// below a prefix, where one of them identifies their owner.
package external
