package hosts

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// Authorizer lets the agent of a node impersonate the controllers of its host, and lets these read and write their
// intent log. RBAC cannot express either, because it knows no names that depend on the user.
func Authorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.IsResourceRequest() && a.GetAPIGroup() == "" && a.GetSubresource() == "" && (impersonates(a) || logs(a)) {
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

// logs says whether the controllers of a host want to use an intent log of their own or of a driver. The admission
// plugin checks the name of an object that is to be created, which is not known here, and whose driver it is.
func logs(a authorizer.Attributes) bool {
	node, ok := identity.HostOf(a.GetUser().GetName())
	if !ok || a.GetResource() != "configmaps" || a.GetNamespace() != volume.NamespaceSystem {
		return false
	}
	isTheirs := func(log string) bool { return log == identity.HostIntents(node) || identity.IsOfDriver(log) }
	switch a.GetVerb() {
	case "create":
		return true
	case "update", "delete":
		log, ok := logOf(a.GetName())
		return ok && isTheirs(log)
	case "list":
		log, ok := listed(a)
		return ok && isTheirs(log)
	}
	return false
}

// listed returns the intent log to which the label selector of a list restricts it.
func listed(a authorizer.Attributes) (log string, ok bool) {
	all, err := a.GetLabelSelector()
	if err != nil || len(all) != 1 || all[0].Key() != volume.LabelIntents || all[0].Operator() != selection.Equals {
		return "", false
	}
	return all[0].ValuesUnsorted()[0], true
}
