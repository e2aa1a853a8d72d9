// Package revision says of which source a program is built.
package revision

// of is set by the build.
var of = "unknown" //nolint:gochecknoglobals // the linker can set nothing else

// Of returns the revision of the source: a commit, or the version of a release; "unknown" if the build does not say it.
func Of() string { return of }

// With returns a version, with the revision if that says more.
func With(version string) string { return with(version, of) }

func with(version, revision string) string {
	if revision == "unknown" || revision == version {
		return version
	}
	return version + ", revision " + revision
}
