package hosts

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/storage/v1"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

var errStarting = errors.New("the CSIDrivers are not known yet")

// Authorizer lets the agent of a node impersonate the controllers of its host, and lets these read and write their
// own intent log and those of the drivers that are delegated to them. RBAC cannot express either, because it knows no
// names that depend on the user.
func Authorizer(inf informers.SharedInformerFactory) authorizer.Authorizer {
	all := driversOf(inf)
	return authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if !a.IsResourceRequest() || a.GetAPIGroup() != "" || a.GetSubresource() != "" {
				return authorizer.DecisionNoOpinion, "", nil
			}
			ok := impersonates(a)
			if node, log, about := logs(a); about {
				var err error
				if ok, err = all.mayUse(node, log); err != nil {
					return authorizer.DecisionNoOpinion, "", err
				}
			}
			if ok {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
}

// impersonates says whether a node's agent wants to act as the controllers of its host.
func impersonates(a authorizer.Attributes) bool {
	node, ok := strings.CutPrefix(a.GetUser().GetName(), identity.UserPrefix)
	if !ok || a.GetVerb() != "impersonate" || !slices.Contains(a.GetUser().GetGroups(), identity.NodesGroup) {
		return false
	}
	return a.GetResource() == "users" && a.GetName() == identity.HostPrefix+node ||
		a.GetResource() == "groups" && a.GetName() == identity.HostsGroup
}

// logs returns the intent log that the controllers of a node's host want to use. The log is empty for an object that is
// being created: its name is not known here, and the admission plugin checks it.
func logs(a authorizer.Attributes) (node, log string, ok bool) {
	node, ok = identity.HostOf(a.GetUser().GetName())
	if !ok || a.GetResource() != "configmaps" || a.GetNamespace() != volume.NamespaceSystem {
		return "", "", false
	}
	switch a.GetVerb() {
	case "create":
	case "update", "delete":
		log, ok = logOf(a.GetName())
	case "list":
		log, ok = listed(a)
	default:
		ok = false
	}
	return node, log, ok
}

// listed returns the intent log to which a list's label selector restricts it.
func listed(a authorizer.Attributes) (log string, ok bool) {
	all, err := a.GetLabelSelector()
	if err != nil || len(all) != 1 || all[0].Key() != volume.LabelIntents || all[0].Operator() != selection.Equals {
		return "", false
	}
	return all[0].ValuesUnsorted()[0], true
}

// drivers knows which drivers are delegated to which nodes.
type drivers struct {
	listers.CSIDriverLister
	synced func() bool
}

func driversOf(inf informers.SharedInformerFactory) drivers {
	all := inf.Storage().V1().CSIDrivers()
	return drivers{all.Lister(), all.Informer().HasSynced}
}

// mayLead says whether any driver for which isOf is true is delegated to a node.
func (d drivers) mayLead(node string, isOf func(driver string) bool) (bool, error) {
	if !d.synced() {
		return false, errStarting
	}
	all, err := d.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, one := range all {
		if isOf(one.Name) && volume.IsDelegatedTo(one.Annotations, node) {
			return true, nil
		}
	}
	return false, nil
}

// mayUse says whether an intent log is that of a node's host, or of a driver that is delegated to the node.
func (d drivers) mayUse(node, log string) (bool, error) {
	if !identity.IsOfDriver(log) {
		return log == "" || log == identity.HostIntents(node), nil
	}
	return d.mayLead(node, func(driver string) bool { return identity.DriverIntents(driver) == log })
}
