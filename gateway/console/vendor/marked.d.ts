export function lexer(source: string, options?: { gfm?: boolean; breaks?: boolean }): any[];
