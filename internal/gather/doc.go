// Package gather reads from the API what an explanation needs, and no more: the facts about one object, about
// a namespace, or about the cluster. What they mean is for internal/explain to say.
//
// The kinds of objects that can be explained are here, because each is read in its own way. Reading has no
// effect and may be repeated. What the user may not read is noted as hidden where an answer can do without it.
package gather
