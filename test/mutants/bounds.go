package main

// bound is the share of the changes of a package, or of one of its files, that its own tests must notice.
type bound struct {
	// prefix is how the import paths of the packages begin.
	prefix string
	// file is one file of the package; empty means all together.
	file    string
	percent float64
}

// bounds returns what is wanted of this repository.
func bounds() []bound {
	const own = "volplane.dev/volplane/internal/"
	return []bound{
		{own + "decide/", "", 90},
		{own + "node/journal", "", 90},
		{own + "kube", "intentlog.go", 90},
		{own + "kube", "intentload.go", 90},
		{own + "controller/", "", 70},
	}
}
