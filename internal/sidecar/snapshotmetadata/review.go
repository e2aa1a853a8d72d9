package snapshotmetadata

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// longText limits foreign text in an answer, in bytes.
const longText = 512

// authenticate returns the user of a token. A client without a valid token learns nothing about the cluster: details
// from the API server are only logged.
func (s *server) authenticate(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	audience, err := s.audience(ctx)
	if err != nil {
		return authenticationv1.UserInfo{}, s.unavailable("find the audience of tokens", err)
	}
	review, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, s.unavailable("review the token", err)
	}
	if why := rejected(review.Status, audience); why != "" {
		s.Log.Debug("a token was refused", "driver", s.Driver, "why", shown(why))
		return authenticationv1.UserInfo{}, status.Error(codes.Unauthenticated,
			"the token is not valid for the audience of this service")
	}
	return review.Status.User, nil
}

// audience returns what tokens must be for.
func (s *server) audience(ctx context.Context) (string, error) {
	if s.Audience != "" {
		return s.Audience, nil
	}
	service, err := s.objects.MetadataService(ctx, s.Driver)
	if err != nil {
		return "", err
	}
	if service.Spec.Audience == "" {
		// A review without an audience would accept the tokens that are for the API server.
		return "", errNoAudience
	}
	return service.Spec.Audience, nil
}

// rejected returns why a token does not identify the client, or "".
func rejected(s authenticationv1.TokenReviewStatus, audience string) string {
	switch {
	case !s.Authenticated && s.Error != "":
		return s.Error
	case !s.Authenticated:
		return "the API server does not know it"
	case !slices.Contains(s.Audiences, audience):
		// An API server that does not know audiences answers like this.
		return "the API server does not say that it is for " + audience
	case s.User.Username == "":
		return "it has no user"
	}
	return ""
}

// authorize refuses a user who may not read the snapshot.
func (s *server) authorize(ctx context.Context, user authenticationv1.UserInfo, a ask) error {
	review, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, accessOf(user, a),
		metav1.CreateOptions{})
	if err != nil {
		return s.unavailable("review what the client may read", err)
	}
	if r := review.Status; !r.Allowed || r.Denied {
		text := "user " + user.Username + " may not get VolumeSnapshot " + a.Namespace + "/" + a.Snapshot
		if r.Reason != "" {
			text += ": " + r.Reason
		}
		return status.Error(codes.PermissionDenied, shown(text))
	}
	return nil
}

// accessOf returns the question whether a user may read the snapshot of a request.
func accessOf(user authenticationv1.UserInfo, a ask) *authorizationv1.SubjectAccessReview {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshots,
			Namespace: a.Namespace, Name: a.Snapshot,
		},
	}}
}

// unavailable logs the cause, and returns an error that says only what was attempted.
func (s *server) unavailable(do string, err error) error {
	s.Log.Warn("a client cannot be served", "driver", s.Driver, "do", do, "err", shown(err.Error()))
	return status.Error(codes.Unavailable, "the server could not "+do+"; its log says why")
}

// shown returns a foreign text as one short line without tokens.
func shown(text string) string { return new(redact.Secrets).Hide(redact.Line(text, longText)) }
