package apiserver

import (
	"context"
	"crypto/ecdsa"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authzunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"volplane.dev/volplane/standalone/apiserver/hosts"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/pki"
)

// issuer names this API server in service account tokens.
const issuer = "https://kubernetes.default.svc"

// authenticate configures the authenticators: client certificates of the authority that
// are not revoked, service account tokens, and invitations. A request without
// any of them may only read the health endpoints, as supervisors do.
func authenticate(
	c *genericapiserver.Config, ca *pki.Authority, inf informers.SharedInformerFactory, members *membership.Members,
) (authenticator.Request, error) {
	clientCA, err := dynamiccertificates.NewStaticCAContent("client-ca", ca.CertPEM())
	if err != nil {
		return nil, fmt.Errorf("certificate authority for clients: %w", err)
	}
	if err := c.Authentication.ApplyClientCert(clientCA, c.SecureServing); err != nil {
		return nil, fmt.Errorf("certificate authority for clients: %w", err)
	}
	audiences := authenticator.Audiences{issuer}
	keys, err := serviceaccount.StaticPublicKeysGetter([]any{&ca.ServiceAccountKey.PublicKey})
	if err != nil {
		return nil, fmt.Errorf("key of service account tokens: %w", err)
	}
	tokens := serviceaccount.JWTTokenAuthenticator([]string{issuer}, keys, audiences,
		serviceaccount.NewValidator(owners{inf}))
	c.Authentication.APIAudiences = audiences
	identities := group.NewAuthenticatedGroupAdder(authnunion.New(
		ownProcess(),
		members.Certificates(x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion)),
		bearertoken.New(tokenunion.New(members, tokens)),
	))
	// An invalid identity is refused instead of treated as anonymous.
	c.Authentication.Authenticator = authnunion.NewFailOnError(identities, anonymous.NewAuthenticator(
		[]apiserver.AnonymousAuthCondition{{Path: "/healthz"}, {Path: "/livez"}, {Path: "/readyz"}}))
	return identities, nil
}

func tokenIssuer(key *ecdsa.PrivateKey) (serviceaccount.TokenGenerator, error) {
	g, err := serviceaccount.JWTTokenGenerator(issuer, key)
	if err != nil {
		return nil, fmt.Errorf("issuer of service account tokens: %w", err)
	}
	return g, nil
}

// authorize configures the authorizers: administrators may do everything, node agents are restricted to their own
// objects, and RBAC decides about all others. Until ready is closed, requests wait, because the roles are unknown until
// then.
func authorize(
	c *genericapiserver.Config, inf informers.SharedInformerFactory, members *membership.Members, ready <-chan struct{},
) error {
	graph := node.NewGraph()
	node.AddGraphEventHandlers(graph, inf.Core().V1().Nodes(), inf.Core().V1().Pods(), inf.Core().V1().PersistentVolumes(),
		inf.Storage().V1().VolumeAttachments(), nil, nil)
	r := inf.Rbac().V1()
	roles := rbac.New(
		&rbac.RoleGetter{Lister: r.Roles().Lister()}, &rbac.RoleBindingLister{Lister: r.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: r.ClusterRoles().Lister()},
		&rbac.ClusterRoleBindingLister{Lister: r.ClusterRoleBindings().Lister()})
	all, err := authzunion.New(
		authzunion.NamedAuthorizer{
			AuthorizerName: "Administrators", Authorizer: authorizerfactory.NewPrivilegedGroups("system:masters"),
		},
		authzunion.NamedAuthorizer{AuthorizerName: "Start", Authorizer: waitFor(ready)},
		authzunion.NamedAuthorizer{AuthorizerName: "Membership", Authorizer: members.Authorizer()},
		authzunion.NamedAuthorizer{AuthorizerName: "Node", Authorizer: node.NewAuthorizer(graph,
			nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())},
		authzunion.NamedAuthorizer{AuthorizerName: "Hosts", Authorizer: hosts.Authorizer(inf)},
		authzunion.NamedAuthorizer{AuthorizerName: "RBAC", Authorizer: roles})
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	c.Authorization.Authorizer, c.RuleResolver = all, roles
	return nil
}

// waitFor delays requests until ready is closed and has no opinion on them. Without it,
// clients would be refused during the start and back off.
func waitFor(ready <-chan struct{}) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if !a.IsResourceRequest() {
				// Supervisors read the health endpoints before the server is ready.
				return authorizer.DecisionNoOpinion, "", nil
			}
			select {
			case <-ready:
				return authorizer.DecisionNoOpinion, "", nil
			case <-ctx.Done():
				return authorizer.DecisionNoOpinion, "", ctx.Err()
			}
		})
}

// owners looks up the objects to which a service account token is bound, because the token becomes invalid with them.
type owners struct {
	inf informers.SharedInformerFactory
}

// GetServiceAccount returns the account that a token speaks for.
func (o owners) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return o.inf.Core().V1().ServiceAccounts().Lister().ServiceAccounts(namespace).Get(name)
}

// GetPod returns the Pod that a token is bound to.
func (o owners) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return o.inf.Core().V1().Pods().Lister().Pods(namespace).Get(name)
}

// GetSecret refuses: tokens bound to Secrets are not issued here.
func (o owners) GetSecret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

// GetNode returns the Node that a token is bound to.
func (o owners) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return o.inf.Core().V1().Nodes().Lister().Get(name)
}

// GetValidatingWebhookConfiguration refuses: there are no webhooks.
func (o owners) GetValidatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(admissionregistrationv1.Resource("validatingwebhookconfigurations"), name)
}

// GetMutatingWebhookConfiguration refuses: there are no webhooks.
func (o owners) GetMutatingWebhookConfiguration(
	_ context.Context, name string,
) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(admissionregistrationv1.Resource("mutatingwebhookconfigurations"), name)
}
